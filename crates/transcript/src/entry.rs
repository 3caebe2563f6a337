//! The vocabulary: one thing an agent's stream told, in the same words for every client.
//!
//! Owns the shapes only. What a client writes becomes an entry in the file of that client; what
//! entries add up to is the tally's.

/// One thing an agent's stream told.
///
/// An entry may be told twice, by two sources or by one that repeats itself; the
/// [`Tally`](crate::Tally) counts it once.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A line was read, whatever was on it.
    Line,
    /// The agent named the session it runs in, by which it can be resumed.
    Session(String),
    /// The agent named the model it uses from here on.
    Model(String),
    /// A session of a sub-agent began, which has a file of its own under this id.
    Subagent(String),
    /// The model answered once.
    Turn(Turn),
    /// A tool was called and has not finished.
    ToolStarted {
        /// By which its end is recognised.
        id: String,
        /// As the client calls it.
        name: String,
    },
    /// A tool has finished, well or not.
    ToolFinished {
        /// The id it was started with.
        id: String,
    },
    /// What one response used. An increment: to be added, once per response.
    Usage(Usage),
    /// What was used up to here. Cumulative: replaces an earlier total, is never added.
    Total(Total),
    /// The agent works again after it waited.
    Working,
    /// The agent waits for a person.
    Waiting(Waiting),
    /// A request failed and is tried again.
    Retrying {
        /// Counted from one.
        attempt: u64,
        /// How long the client waits before it, where it says so.
        delay_ms: Option<u64>,
    },
    /// The service said how much may still be used.
    RateLimit(RateLimit),
    /// The agent gave its final answer. It may live on, work again and give another one.
    Result(Ending),
    /// The agent, or the service behind it, failed, in its own words.
    Error(String),
    /// Something this reader does not know, by the name the stream gives it.
    Unknown(String),
    /// A line of text where JSON was expected. Clients print some.
    Plain,
    /// A line that begins as JSON and is not.
    Broken,
    /// A line longer than [`MAX_LINE_BYTES`](crate::MAX_LINE_BYTES), which was skipped.
    TooLong,
}

impl Entry {
    /// Whether it says something of the agent, and not only of the line it was on.
    pub(crate) fn is_about_the_agent(&self) -> bool {
        match self {
            Self::Line | Self::Unknown(_) | Self::Plain | Self::Broken | Self::TooLong => false,
            Self::Session(_)
            | Self::Model(_)
            | Self::Subagent(_)
            | Self::Turn(_)
            | Self::ToolStarted { .. }
            | Self::ToolFinished { .. }
            | Self::Usage(_)
            | Self::Total(_)
            | Self::Working
            | Self::Waiting(_)
            | Self::Retrying { .. }
            | Self::RateLimit(_)
            | Self::Result(_)
            | Self::Error(_) => true,
        }
    }
}

/// One completed response of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// By which a repetition is recognised.
    pub id: TurnId,
    /// Whether a sub-agent's model answered.
    pub subagent: bool,
    /// How many tools it asks for, as far as this entry knows. None makes no tool-using turn.
    pub tools: u64,
}

/// How a response is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnId {
    /// By a name that every source of the run gives it.
    Shared(String),
    /// By its place in this source, counted from one; another source may tell it, too, and nobody
    /// can say which of its turns it is.
    Own(u64),
}

/// What one response used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// The response, by the shared name of its [`Turn`]. None if it has none and is told once.
    pub id: Option<String>,
    /// The request, where the client keeps it apart from the response.
    pub request: Option<String>,
    /// The model that answered, which need not be the one asked for.
    pub model: Option<String>,
    /// How good the numbers are.
    pub grade: Grade,
    /// Whether it was a sub-agent's.
    pub subagent: bool,
    /// By kind.
    pub tokens: Tokens,
    /// Money for this response in United States dollars, as the client said it.
    pub usd: Option<f64>,
}

/// How good the numbers of a usage are; a better one replaces a worse one for the same response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// Told when the response began: input is right, output is not.
    #[default]
    Placeholder,
    /// The same, kept on disk of a response that was cut off: nobody will ever tell better.
    Cut,
    /// Told when the response ended.
    Streamed,
    /// What the client keeps on disk.
    Recorded,
}

/// What was used up to here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    /// Since when.
    pub since: Span,
    /// By kind, if the client tells tokens.
    pub tokens: Option<Tokens>,
    /// In United States dollars, if the client tells money.
    pub usd: Option<f64>,
}

/// From where on a total counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The client's process.
    Run,
    /// The session, which may be older than this run.
    Session,
}

/// Tokens by kind. Kinds an agent does not tell stay at zero; no token is in two kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Read by the model and neither found in a cache nor written to one.
    pub input: u64,
    /// Written by the model, its thinking included.
    pub output: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written to a cache for five minutes, or to one whose time the client does not tell.
    pub cache_write_5m: u64,
    /// Written to a cache for an hour.
    pub cache_write_1h: u64,
    /// No tokens but searches, which are priced beside them.
    pub web_searches: u64,
}

impl Tokens {
    /// All tokens of every kind. Searches are no tokens.
    pub fn all(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    /// What the model was given to read, by which long-context prices are chosen.
    pub fn prompt(&self) -> u64 {
        [self.cache_read, self.cache_write_5m, self.cache_write_1h]
            .iter()
            .fold(self.input, |sum, n| sum.saturating_add(*n))
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    pub(crate) fn minus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    pub(crate) fn larger(&self, other: &Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            input: with(self.input, other.input),
            output: with(self.output, other.output),
            cache_read: with(self.cache_read, other.cache_read),
            cache_write_5m: with(self.cache_write_5m, other.cache_write_5m),
            cache_write_1h: with(self.cache_write_1h, other.cache_write_1h),
            web_searches: with(self.web_searches, other.web_searches),
        }
    }
}

/// What an agent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The next thing to do.
    Input,
    /// A permission.
    Approval,
}

/// What the service said about how much may still be used. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// Little is left until then.
    Warning {
        /// When the limit is lifted, if known.
        until: Option<u64>,
    },
    /// Nothing is left until then.
    Rejected {
        /// When the limit is lifted, if known.
        until: Option<u64>,
    },
}

/// A final answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Whether the client calls it a failure; some call a failure a success, and this sees through
    /// it.
    pub is_error: bool,
    /// The client's own word for it.
    pub subtype: String,
}
