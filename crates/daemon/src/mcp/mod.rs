//! The tools an agent itself uses, as an MCP server.
//!
//! ```text
//! kennel mcp --WebSocket--> GET /v1/mcp --+
//!                                         +--> who asks (caller) --> tool --> the API's functions
//! any client --HTTP--> POST /mcp ---------+
//! ```
//!
//! Owns: the list of tools, and the way from a call to one of them. A call sees what its caller
//! may see; see `caller`. Every call is bounded in time and in what it answers.

mod caller;
mod inputs;
mod reading;
mod say;
mod socket;
mod tools;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::request::Parts;
use axum::response::Response;
use rmcp::handler::server::common::schema_for_input;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::api::error::ApiError;
use crate::api::listen::Asker;
use crate::api::{App, wire};
use crate::text::Text;
use caller::Caller;
use socket::Lines;
use tools::{Answer, Around, Call};

/// Calls under way at once on one connection: a model makes a handful.
const MAX_CALLS: usize = 64;
/// How long a client may take to say where it is.
const HELLO_BOUND: Duration = Duration::from_secs(10);
/// Variables of the daemon's own that a run gets whose starter has none to give.
const PLAIN_VARIABLES: [&str; 8] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"];

/// What a model is told before all else.
const INSTRUCTIONS: &str = "\
Runs commands in the background, each owned whole: a stopped run is proven gone, with everything \
it started. Use `start` for anything that takes longer than a moment (servers, builds, tests, \
other agents). You can end your turn: a run goes on without you, and `notices` tells of its end \
until you `ack` it. `wait` for an end or for a text, or `poll` with the cursors of the last \
answer for new output. A time-out of `wait` is not an error. You see and stop only runs you \
started, and what those started.";

/// The tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Start,
    List,
    Poll,
    Log,
    Wait,
    Stop,
    Write,
    Submit,
    Close,
    Notices,
    Ack,
}

impl Verb {
    const ALL: [Self; 11] = [
        Self::Start,
        Self::List,
        Self::Poll,
        Self::Log,
        Self::Wait,
        Self::Stop,
        Self::Write,
        Self::Submit,
        Self::Close,
        Self::Notices,
        Self::Ack,
    ];

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::List => "list",
            Self::Poll => "poll",
            Self::Log => "log",
            Self::Wait => "wait",
            Self::Stop => "stop",
            Self::Write => "write",
            Self::Submit => "submit",
            Self::Close => "close",
            Self::Notices => "notices",
            Self::Ack => "ack",
        }
    }

    fn tool(self) -> Tool {
        let (schema, description) = match self {
            Self::Start => (
                schema::<inputs::Start>(),
                "Start a command in the background and return at once, when it really runs. \
                 Returns the run's id. It goes on when your turn or your connection ends.",
            ),
            Self::List => (
                schema::<inputs::List>(),
                "List the runs you started, newest first, with state, end and bytes written.",
            ),
            Self::Poll => (
                schema::<inputs::Poll>(),
                "State of one run and its output since your last poll. Give back the cursors you \
                 got; with wait_ms it waits for something new.",
            ),
            Self::Log => (
                schema::<inputs::Log>(),
                "Output of one run: the end of it, or any part from a byte offset on.",
            ),
            Self::Wait => (
                schema::<inputs::Wait>(),
                "Wait until runs have ended, or until one has written a text. Comes back with \
                 timed_out if that takes longer; then wait again or do something else.",
            ),
            Self::Stop => (
                schema::<inputs::Stop>(),
                "Stop runs with everything they started: ask, force after the grace, and wait for \
                 the proof that nothing is left.",
            ),
            Self::Write => (
                schema::<inputs::Write>(),
                "Write to the input of a run that was started with stdin or pty, as it is.",
            ),
            Self::Submit => {
                (schema::<inputs::Submit>(), "Write a line to the input of a run and press Enter.")
            }
            Self::Close => (
                schema::<inputs::Close>(),
                "Close the input of a run: it reads end of file. It is not stopped by that.",
            ),
            Self::Notices => (
                schema::<inputs::Notices>(),
                "What happened to your runs since you last acknowledged: ends with the end of \
                 their output, watched lines, limits. With wait_ms it waits for one.",
            ),
            Self::Ack => (
                schema::<inputs::Ack>(),
                "Acknowledge notices up to a seq, so that they are not told again.",
            ),
        };
        Tool::new(self.name(), description, schema).with_annotations(self.hints())
    }

    fn hints(self) -> ToolAnnotations {
        let hints = ToolAnnotations::new();
        match self {
            Self::List | Self::Poll | Self::Log | Self::Wait | Self::Notices => {
                hints.read_only(true).idempotent(true).open_world(false)
            }
            Self::Stop => hints.read_only(false).destructive(true).idempotent(true),
            Self::Start => hints.read_only(false).destructive(false).open_world(true),
            Self::Write | Self::Submit | Self::Close | Self::Ack => {
                hints.read_only(false).destructive(false).open_world(false)
            }
        }
    }

    async fn perform(self, call: &Call, arguments: JsonObject) -> Result<Answer, ApiError> {
        match self {
            Self::Start => call.start(read(arguments)?).await,
            Self::List => call.list(read(arguments)?).await,
            Self::Poll => call.poll(read(arguments)?).await,
            Self::Log => call.log(read(arguments)?).await,
            Self::Wait => call.wait(read(arguments)?).await,
            Self::Stop => call.stop(read(arguments)?).await,
            Self::Write => call.write(read(arguments)?).await,
            Self::Submit => call.submit(read(arguments)?).await,
            Self::Close => call.close(read(arguments)?).await,
            Self::Notices => call.notices(read(arguments)?).await,
            Self::Ack => call.ack(read(arguments)?).await,
        }
    }
}

fn schema<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    // An error only of what is no object, which all of ours are.
    let made = schema_for_input::<T>().unwrap_or_default();
    let named = made.get("$defs").cloned().unwrap_or_default();
    let simple = simple(Value::Object((*made).clone()), &named);
    simple.as_object().cloned().map_or(made, Arc::new)
}

/// The same schema in fewer words: some models' services take no references, no lists of types and
/// no formats, and every word is read by a model that may never call the tool.
fn simple(schema: Value, named: &Value) -> Value {
    if let Value::Array(all) = schema {
        return all.into_iter().map(|one| simple(one, named)).collect();
    }
    let Value::Object(mut fields) = schema else { return schema };
    if let Some(name) = fields.remove("$ref").as_ref().and_then(Value::as_str) {
        let name = name.rsplit('/').next().unwrap_or_default();
        if let Some(meant) = named[name].as_object() {
            let meant = meant.iter().map(|(key, value)| (key.clone(), value.clone()));
            // What is said where it is used comes before what is said of it in general.
            fields = meant.chain(std::mem::take(&mut fields)).collect();
        }
    }
    for key in ["$schema", "$defs", "format", "minimum"] {
        if fields.get(key).is_some_and(|value| !value.is_object()) || key == "$defs" {
            fields.remove(key);
        }
    }
    if let Some(Value::Array(types)) = fields.get("type") {
        let real = types.iter().find(|one| *one != "null").cloned();
        fields.insert("type".to_owned(), real.unwrap_or_default());
    }
    if fields.get("default").is_some_and(Value::is_null) {
        fields.remove("default");
    }
    if let Some(Value::Array(mut each)) = fields.remove("anyOf") {
        each.retain(|one| one["type"] != "null");
        match each.as_slice() {
            [Value::Object(only)] => {
                fields.extend(only.iter().map(|(key, value)| (key.clone(), value.clone())));
                return simple(Value::Object(fields), named);
            }
            _ => drop(fields.insert("anyOf".to_owned(), Value::Array(each))),
        }
    }
    Value::Object(fields.into_iter().map(|(key, value)| (key, simple(value, named))).collect())
}

/// What a tool is to do. A model that gets it wrong is told so in words it can act on.
fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|e| ApiError::bad_request(format!("failed to read the arguments: {e}")))
}

/// The server, of one connection or of one request.
#[derive(Clone)]
pub(crate) struct Server {
    app: App,
    with: With,
    places: Arc<Semaphore>,
}

/// How it is known who asks.
#[derive(Clone)]
enum With {
    /// It was asked once, of the connection.
    Connection(Caller, Arc<Around>),
    /// Each request tells: several clients may use one connection over TCP.
    Requests,
}

impl Server {
    fn new(app: App, with: With) -> Self {
        Self { app, with, places: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    async fn call(&self, context: &RequestContext<RoleServer>) -> Result<Call, ApiError> {
        let app = self.app.clone();
        match &self.with {
            With::Connection(caller, around) => {
                Ok(Call { app, caller: caller.clone(), around: Around::clone(around) })
            }
            With::Requests => {
                let parts = context.extensions.get::<Parts>();
                let asker = parts.and_then(|parts| parts.extensions.get::<ConnectInfo<Asker>>());
                let Some(ConnectInfo(asker)) = asker else {
                    return Err(ApiError::internal("the connection does not say who asks"));
                };
                let caller = app.caller(asker).await?;
                Ok(Call { app, caller, around: Around::plain() })
            }
        }
    }

    async fn answer(
        &self,
        verb: Verb,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<Answer, ApiError> {
        let Ok(_place) = self.places.try_acquire() else {
            let message = format!("{MAX_CALLS} calls are under way on this connection already");
            return Err(ApiError::new(
                axum::http::StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                message,
            )
            .hint("wait for one of them"));
        };
        let call = self.call(context).await?;
        tokio::select! {
            answered = verb.perform(&call, arguments) => answered,
            () = context.ct.cancelled() => {
                Err(ApiError::bad_request("the call was given up; runs are as they were"))
            }
        }
    }
}

impl Around {
    /// For those who do not say where they are.
    fn plain() -> Self {
        let variable = |name: &str| Some((text(name.into()), text(std::env::var_os(name)?)));
        let home = std::env::var_os("HOME").filter(|home| home.to_string_lossy().starts_with('/'));
        Self {
            cwd: text(home.unwrap_or_else(|| "/".into())),
            env: PLAIN_VARIABLES.iter().filter_map(|name| variable(name)).collect(),
            note: Some("over HTTP a run gets the daemon's own environment, and starts in its home"),
        }
    }
}

fn text(string: OsString) -> Text {
    Text(string)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let mut info = ServerConfig::new(capabilities);
        info.server_info = Implementation::new("kennel", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(INSTRUCTIONS.to_owned());
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Verb::ALL.map(Verb::tool).to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(verb) = Verb::of(&request.name) else {
            let names = Verb::ALL.map(Verb::name).join(", ");
            let message = format!("there is no tool {:?}; there are {names}", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let result = match self.answer(verb, arguments, &context).await {
            Ok(answer) => told(answer),
            Err(e) => failed(&e.into_wire()),
        };
        Ok(result.into())
    }
}

fn told(answer: Answer) -> CallToolResult {
    let mut result = CallToolResult::structured(answer.value);
    result.content = vec![ContentBlock::text(answer.text)];
    result
}

fn failed(error: &wire::Error) -> CallToolResult {
    let mut result = CallToolResult::structured_error(json!({"error": error}));
    let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    result.content = vec![ContentBlock::text(format!("{}: {}{hint}", error.code, error.message))];
    result
}

/// Serves MCP over HTTP, each request by itself, so that a new daemon goes on where an old one
/// left. Names and pages are checked before, by the guard; on the private socket there are none.
pub(crate) fn service(app: &App) -> StreamableHttpService<Server, NeverSessionManager> {
    let app = app.clone();
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(wire::MAX_MCP_BYTES)
        .disable_allowed_hosts();
    let make = move || Ok(Server::new(app.clone(), With::Requests));
    StreamableHttpService::new(make, Arc::default(), config)
}

/// Speaks MCP over a WebSocket: one message of JSON-RPC in each of its messages. The first is the
/// client's, an `McpHello`. Who asks is known from the connection.
#[utoipa::path(get, path = "/v1/mcp", responses((status = 101, body = wire::McpHello)))]
pub(crate) async fn connect(
    State(app): State<App>,
    ConnectInfo(asker): ConnectInfo<Asker>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let caller = app.caller(&asker).await?;
    let upgrade = upgrade.max_message_size(wire::MAX_MCP_BYTES).max_frame_size(wire::MAX_MCP_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| serve(app, caller, socket).await))
}

async fn serve(app: App, caller: Caller, socket: WebSocket) {
    let mut lines = Lines::new(socket);
    let writer = lines.writer();
    let hello = tokio::time::timeout(HELLO_BOUND, lines.text()).await;
    let Some(around) = hello.ok().flatten().and_then(|text| said(&text)) else { return };
    let mut leaving = app.leaving.clone();
    let server = Server::new(app, With::Connection(caller, Arc::new(around)));
    let served = async {
        if let Ok(running) = rmcp::serve_server(server, lines).await {
            // The client left, and how it did is nobody's business.
            drop(running.waiting().await);
        }
    };
    tokio::select! {
        () = served => {}
        () = async { drop(leaving.wait_for(|leaving| *leaving).await) } => writer.leave().await,
    }
}

fn said(hello: &str) -> Option<Around> {
    let hello: wire::McpHello = serde_json::from_str(hello).ok()?;
    Some(Around { cwd: hello.cwd, env: hello.env, note: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_name_of_its_own_a_schema_and_words() {
        for verb in Verb::ALL {
            let tool = verb.tool();
            assert_eq!(Verb::of(&tool.name), Some(verb));
            assert_eq!(tool.input_schema["type"], "object", "{tool:?}");
            assert!(tool.input_schema.contains_key("properties"), "{tool:?}");
            let text = serde_json::to_string(&tool.input_schema).unwrap();
            for word in ["$ref", "$defs", "null", "uint"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
            assert!(tool.description.is_some_and(|text| text.len() < 300), "{}", verb.name());
        }
    }
}
