//! Claude Code: its stream on standard output, its transcript on disk.
//!
//! Owns both readers. What matters of them:
//!
//! - A response comes as one line per content block, all with its `message.id`. A line of the model
//!   `<synthetic>` is the client's own, and one that is `aborted` was never completed; neither is a
//!   turn.
//! - On standard output `usage` is a placeholder from the start of the response. With partial
//!   messages `message_delta` has the true one, for the main loop only. The transcript has it for
//!   all.
//! - `result`, `cost-state` and the answer to `get_usage` carry totals, of the session from some
//!   version on and of the process before it; a run may print several results.
//! - `subtype` says success when the service failed: `is_error` is what counts.

use serde::Deserialize;

use crate::entry::{
    Ending, Entry, Grade, RateLimit, Span, Tokens, Total, Turn, TurnId, Usage, Waiting,
};
use crate::json::{Count, Flag, Fold, Gather, Loose, Number, Text, Values, front, object, unix_ms};
use crate::reader::{Source, Tell, tell_if_new};

/// How many tool calls or results of one line are told one by one. Models ask for tens at most; a
/// line full of them must not become memory.
const MAX_BLOCKS: usize = 256;

/// The model of what the client says in the model's place.
const SYNTHETIC: &str = "<synthetic>";

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// What is older is not this run's.
    pub(crate) since_ms: Option<u64>,
    session: String,
    model: String,
    /// The response that partial messages are about, and what its beginning said.
    streamed: Streamed,
}

#[derive(Clone, Debug, Default)]
struct Streamed {
    id: String,
    model: String,
    tokens: Tokens,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], source: Source, tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        let session =
            if line.session_id.is_empty() { &line.session_on_disk } else { &line.session_id };
        tell_if_new(&mut self.session, session.as_str(), tell, Entry::Session);
        let is_old = |since| unix_ms(line.timestamp.as_str()).is_some_and(|told| told < since);
        if self.since_ms.is_some_and(is_old) {
            return Some(length);
        }
        match (line.kind.as_str(), source) {
            ("stream_event", _) => self.partial(&line, bytes, tell),
            ("assistant", _) if line.historical.0 => {}
            ("assistant", Source::Stdout) => {
                self.answer(&line, Grade::Placeholder, line.is_subagent(), tell);
            }
            ("assistant", Source::File { subagent }) => {
                // What was cut off is recorded with the usage it began with.
                let grade = match line.message.0.stop_reason {
                    StopReason::Null => Grade::Cut,
                    StopReason::Given | StopReason::NotSaid => Grade::Recorded,
                };
                self.answer(&line, grade, subagent || line.is_subagent(), tell);
            }
            ("user", _) => line.message.0.tell_results(tell),
            (kind, Source::Stdout) => self.said(kind, &rest(bytes), tell),
            (kind, Source::File { .. }) => recorded(kind, &rest(bytes), tell),
        }
        Some(length)
    }

    /// A line of standard output that is not part of the conversation.
    fn said(&mut self, kind: &str, line: &Rest<'_>, tell: Tell<'_>) {
        match kind {
            "system" => self.system(line, tell),
            "result" => result(line, tell),
            "rate_limit_event" => rate_limit(&line.rate_limit_info.0, tell),
            "control_request" if line.request.0.subtype.as_str() == "can_use_tool" => {
                tell(Entry::Waiting(Waiting::Approval));
            }
            "control_response" => {
                let session = &line.response.0.response.0.session.0;
                tell_total(session.total_cost_usd, &session.model_usage.0, tell);
            }
            "control_request" | "control_cancel_request" | "tool_progress" => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
    }

    /// A content block of a response.
    fn answer(&mut self, line: &Line<'_>, grade: Grade, subagent: bool, tell: Tell<'_>) {
        let message = &line.message.0;
        if message.model.as_str() == SYNTHETIC {
            if !line.error.is_empty() {
                tell(Entry::Error(line.error.kept()));
            }
            return;
        }
        if !subagent {
            tell_if_new(&mut self.model, message.model.as_str(), tell, Entry::Model);
        }
        if !line.aborted.0 && !message.id.is_empty() {
            message.tell_turn(subagent, tell);
        }
        let request =
            if line.request_id.is_empty() { &line.request_on_disk } else { &line.request_id };
        let usage = Usage {
            id: message.id.some(),
            request: request.some(),
            model: message.model.some(),
            grade,
            subagent,
            tokens: message.usage.0.tokens(),
            usd: None,
        };
        if usage.tokens != Tokens::default() {
            tell(Entry::Usage(usage));
        }
    }

    /// A partial message. Only its first and its last line say what was used.
    fn partial(&mut self, line: &Line<'_>, bytes: &[u8], tell: Tell<'_>) {
        match line.event.0.kind.as_str() {
            "message_start" => {
                let event = rest(bytes).event.0;
                let message = &event.message.0;
                self.streamed = Streamed {
                    id: message.id.kept(),
                    model: message.model.kept(),
                    tokens: message.usage.0.tokens(),
                };
            }
            "message_delta" if !self.streamed.id.is_empty() => {
                // The end tells the output for certain and the rest only in newer versions.
                let end = rest(bytes).event.0.usage.0.tokens();
                let tokens = self.streamed.tokens.larger(&end);
                tell(Entry::Usage(Usage {
                    id: Some(self.streamed.id.clone()),
                    request: None,
                    model: Some(self.streamed.model.clone()).filter(|model| !model.is_empty()),
                    grade: Grade::Streamed,
                    subagent: line.is_subagent(),
                    tokens,
                    usd: None,
                }));
            }
            _ => {}
        }
    }

    fn system(&mut self, line: &Rest<'_>, tell: Tell<'_>) {
        match line.subtype.as_str() {
            "init" => tell_if_new(&mut self.model, line.model.as_str(), tell, Entry::Model),
            "api_retry" => tell(Entry::Retrying {
                attempt: line.attempt.0,
                delay_ms: line.retry_delay_ms.count(),
            }),
            "session_state_changed" => match line.state.as_str() {
                "running" => tell(Entry::Working),
                "requires_action" => tell(Entry::Waiting(Waiting::Approval)),
                "idle" => tell(Entry::Waiting(Waiting::Input)),
                _ => {}
            },
            "thinking_tokens"
            | "status"
            | "permission_denied"
            | "task_started"
            | "task_progress"
            | "task_updated"
            | "task_notification"
            | "background_tasks_changed"
            | "hook_started"
            | "hook_progress"
            | "hook_response"
            | "compact_boundary" => {}
            other => tell(Entry::Unknown(format!("system/{}", front(other)))),
        }
    }
}

/// A second look at an object that was read before.
fn rest(bytes: &[u8]) -> Rest<'_> {
    object(bytes).map(|(rest, _)| rest).unwrap_or_default()
}

/// A line of the transcript on disk that is not part of the conversation.
fn recorded(kind: &str, line: &Rest<'_>, tell: Tell<'_>) {
    match kind {
        "cost-state" => tell_total(line.total_cost_on_disk, &line.model_usage.0, tell),
        "system"
        | "queue-operation"
        | "last-prompt"
        | "summary"
        | "attachment"
        | "file-history-snapshot"
        | "progress" => {}
        other => tell(Entry::Unknown(front(other).to_owned())),
    }
}

fn result(line: &Rest<'_>, tell: Tell<'_>) {
    tell_total(line.total_cost_usd, &line.model_usage.0, tell);
    if line.is_error.0 {
        let told = [&line.errors.0.0, &line.terminal_reason, &line.subtype];
        let first = told.into_iter().find(|text| !text.is_empty());
        tell(Entry::Error(first.map(Text::kept).unwrap_or_default()));
    }
    let subtype = match line.subtype.as_str() {
        // A success that is none: the reason says what it was.
        "success" if line.is_error.0 && !line.terminal_reason.is_empty() => &line.terminal_reason,
        _ => &line.subtype,
    };
    tell(Entry::Result(Ending { is_error: line.is_error.0, subtype: subtype.kept() }));
}

/// Money and tokens of the whole session; a stream without them has no such total.
fn tell_total(usd: Number, models: &Models, tell: Tell<'_>) {
    if let Some(usd) = usd.amount() {
        let tokens = Some(models.0);
        tell(Entry::Total(Total { since: Span::Session, tokens, usd: Some(usd) }));
    }
}

fn rate_limit(info: &RateLimitInfo<'_>, tell: Tell<'_>) {
    let until = info.resets_at.count();
    match info.status.as_str() {
        "rejected" => tell(Entry::RateLimit(RateLimit::Rejected { until })),
        "allowed_warning" => tell(Entry::RateLimit(RateLimit::Warning { until })),
        _ => {}
    }
}

/// What the lines that come by the thousand need, and the kind of all others. The kind may come
/// last, so it cannot choose a shape beforehand; and a shape with room for everything takes longer
/// to clear than a short line to read. What else a line has is read in a second look, at few lines.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(default, borrow)]
    session_id: Text<'a>,
    #[serde(default, borrow, rename = "sessionId")]
    session_on_disk: Text<'a>,
    #[serde(default, borrow)]
    parent_tool_use_id: Text<'a>,
    #[serde(default, rename = "isSidechain")]
    sidechain: Flag,
    #[serde(default, borrow)]
    request_id: Text<'a>,
    #[serde(default, borrow, rename = "requestId")]
    request_on_disk: Text<'a>,
    #[serde(default, borrow)]
    message: Loose<Message<'a>>,
    #[serde(default, borrow)]
    event: Loose<EventKind<'a>>,
    #[serde(default)]
    aborted: Flag,
    /// A replay of what an earlier run said.
    #[serde(default)]
    historical: Flag,
    #[serde(default, borrow)]
    error: Text<'a>,
    #[serde(default, borrow)]
    timestamp: Text<'a>,
}

#[derive(Default, Deserialize)]
struct EventKind<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Text<'a>,
}

/// What only few lines have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Rest<'a> {
    #[serde(borrow)]
    subtype: Text<'a>,
    #[serde(borrow)]
    event: Loose<Event<'a>>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    state: Text<'a>,
    attempt: Count,
    retry_delay_ms: Number,
    #[serde(borrow)]
    rate_limit_info: Loose<RateLimitInfo<'a>>,
    #[serde(borrow)]
    request: Loose<Request<'a>>,
    response: Loose<Response>,
    is_error: Flag,
    #[serde(borrow)]
    terminal_reason: Text<'a>,
    #[serde(borrow)]
    errors: Fold<First<'a>>,
    total_cost_usd: Number,
    #[serde(rename = "totalCostUSD")]
    total_cost_on_disk: Number,
    #[serde(rename = "modelUsage")]
    model_usage: Values<Models>,
}

impl Line<'_> {
    fn is_subagent(&self) -> bool {
        self.sidechain.0 || !self.parent_tool_use_id.is_empty()
    }
}

/// A message of the API that Claude Code passes on, and that others imitate.
#[derive(Default, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(default, borrow)]
    pub(crate) id: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) model: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) content: Fold<Blocks<'a>>,
    #[serde(default)]
    pub(crate) usage: Loose<ApiUsage>,
    #[serde(default)]
    stop_reason: StopReason,
}

/// Whether a response says why it ended.
#[derive(Clone, Copy, Debug, Default)]
enum StopReason {
    #[default]
    NotSaid,
    Null,
    Given,
}

impl<'de> Deserialize<'de> for StopReason {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let given = Option::<serde::de::IgnoredAny>::deserialize(from)?;
        Ok(if given.is_some() { Self::Given } else { Self::Null })
    }
}

impl Message<'_> {
    /// The turn and the tools it asks for.
    fn tell_turn(&self, subagent: bool, tell: Tell<'_>) {
        let (id, tools) = (TurnId::Shared(self.id.kept()), self.content.0.tool_count);
        tell(Entry::Turn(Turn { id, subagent, tools }));
        self.tell_tools(tell);
    }

    pub(crate) fn tell_tools(&self, tell: Tell<'_>) {
        for (id, name) in &self.content.0.tools {
            tell(Entry::ToolStarted { id: id.kept(), name: name.kept() });
        }
    }

    /// The tools that a message of the user's side brings the results of.
    pub(crate) fn tell_results(&self, tell: Tell<'_>) {
        for id in &self.content.0.results {
            tell(Entry::ToolFinished { id: id.kept() });
        }
    }
}

/// What matters of a message's content.
#[derive(Default)]
pub(crate) struct Blocks<'a> {
    tools: Vec<(Text<'a>, Text<'a>)>,
    pub(crate) tool_count: u64,
    results: Vec<Text<'a>>,
}

impl<'de: 'a, 'a> Gather<'de> for Blocks<'a> {
    type Element = Loose<Block<'a>>;

    fn gather(&mut self, Loose(block): Self::Element) {
        match block.kind.as_str() {
            "tool_use" => {
                self.tool_count += 1;
                if self.tools.len() < MAX_BLOCKS {
                    self.tools.push((block.id, block.name));
                }
            }
            "tool_result" if self.results.len() < MAX_BLOCKS => {
                self.results.push(block.tool_use_id);
            }
            _ => {}
        }
    }
}

#[derive(Default, Deserialize)]
pub(crate) struct Block<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(default, borrow)]
    id: Text<'a>,
    #[serde(default, borrow)]
    name: Text<'a>,
    #[serde(default, borrow)]
    tool_use_id: Text<'a>,
}

#[derive(Clone, Copy, Default, Deserialize)]
pub(crate) struct ApiUsage {
    #[serde(default)]
    pub(crate) input_tokens: Count,
    #[serde(default)]
    pub(crate) output_tokens: Count,
    #[serde(default)]
    pub(crate) cache_read_input_tokens: Count,
    #[serde(default)]
    cache_creation_input_tokens: Count,
    #[serde(default)]
    cache_creation: Loose<CacheCreation>,
    #[serde(default)]
    server_tool_use: Loose<ServerTools>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct CacheCreation {
    #[serde(default)]
    ephemeral_5m_input_tokens: Count,
    #[serde(default)]
    ephemeral_1h_input_tokens: Count,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct ServerTools {
    #[serde(default)]
    web_search_requests: Count,
}

impl ApiUsage {
    /// Cache tokens are beside the input here, and what was written is split by time, if at all.
    pub(crate) fn tokens(&self) -> Tokens {
        let written = self.cache_creation.0;
        let (short, long) =
            (written.ephemeral_5m_input_tokens.0, written.ephemeral_1h_input_tokens.0);
        let all = self.cache_creation_input_tokens.0;
        Tokens {
            input: self.input_tokens.0,
            output: self.output_tokens.0,
            cache_read: self.cache_read_input_tokens.0,
            cache_write_5m: short.max(all.saturating_sub(long)),
            cache_write_1h: long,
            web_searches: self.server_tool_use.0.web_search_requests.0,
        }
    }
}

#[derive(Default, Deserialize)]
struct Event<'a> {
    #[serde(default, borrow)]
    message: Loose<Message<'a>>,
    #[serde(default)]
    usage: Loose<ApiUsage>,
}

#[derive(Default, Deserialize)]
struct RateLimitInfo<'a> {
    #[serde(default, borrow)]
    status: Text<'a>,
    #[serde(default, rename = "resetsAt")]
    resets_at: Number,
}

#[derive(Default, Deserialize)]
struct Request<'a> {
    #[serde(default, borrow)]
    subtype: Text<'a>,
}

#[derive(Default, Deserialize)]
struct Response {
    #[serde(default)]
    response: Loose<Answer>,
}

#[derive(Default, Deserialize)]
struct Answer {
    #[serde(default)]
    session: Loose<SessionUsage>,
}

#[derive(Default, Deserialize)]
struct SessionUsage {
    #[serde(default)]
    total_cost_usd: Number,
    #[serde(default)]
    model_usage: Values<Models>,
}

/// The tokens of all models together.
#[derive(Default)]
struct Models(Tokens);

impl<'de> Gather<'de> for Models {
    type Element = Loose<ModelUsage>;

    fn gather(&mut self, Loose(model): Self::Element) {
        let (short, long) = (model.written_5m.0, model.written_1h.0);
        self.0 = self.0.plus(&Tokens {
            input: model.input.0,
            output: model.output.0,
            cache_read: model.cache_read.0,
            cache_write_5m: short.max(model.written.0.saturating_sub(long)),
            cache_write_1h: long,
            web_searches: model.searches.0,
        });
    }
}

#[derive(Default, Deserialize)]
struct ModelUsage {
    #[serde(default, rename = "inputTokens")]
    input: Count,
    #[serde(default, rename = "outputTokens")]
    output: Count,
    #[serde(default, rename = "cacheReadInputTokens")]
    cache_read: Count,
    #[serde(default, rename = "cacheCreationInputTokens")]
    written: Count,
    #[serde(default, rename = "cacheCreationEphemeral5mInputTokens")]
    written_5m: Count,
    #[serde(default, rename = "cacheCreationEphemeral1hInputTokens")]
    written_1h: Count,
    #[serde(default, rename = "webSearchRequests")]
    searches: Count,
}

/// The first text of a list.
#[derive(Default)]
struct First<'a>(Text<'a>);

impl<'de: 'a, 'a> Gather<'de> for First<'a> {
    type Element = Text<'a>;

    fn gather(&mut self, text: Text<'a>) {
        if self.0.is_empty() {
            self.0 = text;
        }
    }
}
