//! What a coding agent's own event stream tells, in one vocabulary for every agent.
//!
//! Owns: [`Entry`], the words in which limits, usage and notices speak of an agent. Never does I/O,
//! never reads a clock, and never fails on input it does not know: that becomes [`Entry::Unknown`].
//! The readers, one file per agent's command line, turn bytes into entries.

#![forbid(unsafe_code)]

/// One thing an agent's stream told.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// The agent named the session it runs in, by which it can be resumed.
    Session(String),
    /// The agent named the model it uses from here on.
    Model(String),
    /// The model answered once.
    Turn,
    /// The agent called a tool of this name within the current turn.
    ToolCall(String),
    /// Tokens used since the last such entry. What counts the same tokens again is left out.
    Usage(Tokens),
    /// Money spent since the last such entry, in United States dollars, as the agent said it.
    Cost(f64),
    /// The agent waits for a person: a question, a permission, a login.
    Waiting(String),
    /// The agent gave its final answer.
    Result(String),
    /// The agent, or the service behind it, failed in its own words.
    Error(String),
    /// Something this reader does not know, by the name the stream gives it.
    Unknown(String),
}

/// Tokens by kind. Kinds an agent does not tell stay at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Read by the model and not found in a cache.
    pub input: u64,
    /// Written by the model.
    pub output: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written to a cache.
    pub cache_write: u64,
}
