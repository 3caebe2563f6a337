//! What a model is told to say, as plain data.

/// One answer of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Says something, asks for tools, or both.
    Answer(Answer),
    /// Fails as a service does.
    Refuse(Refusal),
    /// Begins to answer and never ends.
    Hang,
}

/// A completed response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What it says first.
    pub text: String,
    /// The tools it asks for. None ends the agent's turn.
    pub asks: Vec<Ask>,
    /// What it is said to have used.
    pub tokens: Tokens,
    /// Headers beside the usual ones.
    pub headers: Vec<(String, String)>,
}

/// A tool the model asks for, under whatever name the client has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A command for the shell, waited for.
    Shell(String),
    /// A command for the shell that goes on behind the agent's back.
    Background(String),
    /// A tool of an MCP server: the server, the tool, and what it is given, as JSON.
    Mcp(&'static str, &'static str, String),
    /// A sub-agent with this prompt.
    Task(String),
    /// The end of the sub-agents that were started before and go on behind the agent's back.
    WaitForTasks,
}

/// A failure of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of HTTP.
    pub status: u16,
    /// The kind of error in the body.
    pub kind: &'static str,
    /// Headers beside the usual ones.
    pub headers: Vec<(String, String)>,
    /// How often; after that the next step is played.
    pub times: u32,
}

/// What a response used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input that was not in a cache.
    pub input: u64,
    /// Output.
    pub output: u64,
    /// Input that was read from a cache.
    pub cache_read: u64,
    /// Input that was put into a cache for five minutes.
    pub cache_write_5m: u64,
    /// Input that was put into a cache for an hour.
    pub cache_write_1h: u64,
}

/// A response that says this, asks for nothing and used a little.
#[must_use]
pub fn answer(text: &str) -> Answer {
    let tokens = Tokens { input: 100, output: 20, ..Tokens::default() };
    Answer { text: text.to_owned(), tokens, ..Answer::default() }
}

impl Answer {
    /// Asks for this, too.
    #[must_use]
    pub fn ask(mut self, ask: Ask) -> Self {
        self.asks.push(ask);
        self
    }

    /// Asks for a command, too.
    #[must_use]
    pub fn shell(self, command: &str) -> Self {
        self.ask(Ask::Shell(command.to_owned()))
    }

    /// Used this.
    #[must_use]
    pub fn used(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// As a step of a script.
    #[must_use]
    pub fn step(self) -> Step {
        Step::Answer(self)
    }
}

impl Step {
    /// Whether it asks for a tool.
    pub(super) fn asks(&self) -> bool {
        match self {
            Self::Answer(answer) => !answer.asks.is_empty(),
            Self::Refuse(_) | Self::Hang => false,
        }
    }
}

/// What has to be in a prompt for this script to be played.
#[must_use]
pub fn tag(script: &str) -> String {
    format!("{OPENS}{script}{CLOSES}")
}

const OPENS: &str = "[[script:";
const CLOSES: &str = "]]";

/// The scripts a text names, in order.
pub(super) fn tags_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(OPENS).skip(1).filter_map(|rest| Some(rest.split_once(CLOSES)?.0))
}
