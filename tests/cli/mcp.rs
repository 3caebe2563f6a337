//! The tools an agent itself uses: `kennel mcp` as clients start it, in runs and outside of them,
//! and MCP over HTTP.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use kennel_tests::{PATIENCE, until};
use serde_json::{Value, json};

use super::home::{Home, SOON};
use super::meter::{self, responses};

/// What `kennel mcp` answers for a daemon that is not there.
const NO_DAEMON: i64 = -32_001;

/// A client of MCP over lines.
struct Client {
    to: Box<dyn Write>,
    from: Receiver<Value>,
    /// Answers to others than the one that was waited for.
    early: Vec<Value>,
    child: Option<Child>,
    last: u64,
}

impl Client {
    /// `kennel mcp` as a process of nobody's.
    fn outside(home: &Home) -> Self {
        let mut command = home.command(&["mcp"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be run");
        let to = Box::new(child.stdin.take().expect("it is a pipe"));
        let from = lines(child.stdout.take().expect("it is a pipe"));
        let mut client = Self { to, from, early: Vec::new(), child: Some(child), last: 0 };
        client.greet();
        client
    }

    /// `kennel mcp` in a run, which `start` starts with this script; `MCP` in it is the command.
    fn inside(home: &Home, name: &str, script: &str, start: impl FnOnce(&str)) -> Self {
        let (to, from) = (fifo(home, &format!("{name}.to")), fifo(home, &format!("{name}.from")));
        let mcp =
            format!("{} mcp <{} >{}", env!("CARGO_BIN_EXE_kennel"), to.display(), from.display());
        start(&script.replace("MCP", &mcp));
        let to = File::options().write(true).open(&to).expect("it can be opened");
        let from = lines(File::open(&from).expect("it can be opened"));
        let mut client = Self { to: Box::new(to), from, early: Vec::new(), child: None, last: 0 };
        client.greet();
        client
    }

    fn greet(&mut self) {
        let info = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        let answer = self.ask("initialize", params);
        assert_eq!(answer["result"]["serverInfo"]["name"], "kennel", "{answer}");
        self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    fn say(&mut self, line: &str) {
        writeln!(self.to, "{line}").and_then(|()| self.to.flush()).expect("it is taken");
    }

    /// Asks, and leaves the answer for later.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.say(&request.to_string());
        id
    }

    fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    #[track_caller]
    fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        loop {
            if let Some(at) = self.early.iter().position(|answer| answer["id"] == id) {
                return self.early.remove(at);
            }
            match self.from.recv_timeout(PATIENCE) {
                Ok(answer) => self.early.push(answer),
                Err(e) => panic!("{id} is not answered: {e}; {:?}", self.early),
            }
        }
    }

    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// Calls a tool that must do what it is asked.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin_call(tool, arguments);
        let answer = self.answer(id);
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{tool} says it in words, too: {answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// Calls a tool that must refuse, with this code, and returns why.
    #[track_caller]
    fn refused(&mut self, tool: &str, arguments: Value, code: &str) -> String {
        let id = self.begin_call(tool, arguments);
        let answer = self.answer(id);
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{tool}: {answer}");
        assert_eq!(result["structuredContent"]["error"]["code"], code, "{tool}: {answer}");
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with(code), "{tool}: {answer}");
        text.to_owned()
    }

    /// Starts a command and returns its run.
    #[track_caller]
    fn start(&mut self, arguments: Value) -> String {
        let started = self.call("start", arguments);
        started["run"].as_str().expect("it has an id").to_owned()
    }

    #[track_caller]
    fn listed(&mut self) -> Vec<String> {
        let listed = self.call("list", json!({}));
        let runs = listed["runs"].as_array().expect("it is a list");
        let id = |run: &Value| run["run"].as_str().expect("it has an id").to_owned();
        runs.iter().map(id).collect()
    }

    /// Waits until a run has ended.
    #[track_caller]
    fn over(&mut self, run: &str) -> Value {
        let waited = self.call("wait", json!({"runs": [run], "timeout_ms": 60_000}));
        assert_eq!(waited["timed_out"], false, "{waited}");
        waited["runs"][0].clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It leaves when its input ends.
        self.to = Box::new(std::io::sink());
        if let Some(mut child) = self.child.take() {
            if std::thread::panicking() {
                let _ = child.kill();
            }
            let status = child.wait().expect("it is ours");
            assert!(status.success() || std::thread::panicking(), "{status}");
        }
    }
}

fn fifo(home: &Home, name: &str) -> PathBuf {
    let path = home.path().join(name);
    let made = Command::new("mkfifo").arg(&path).status().expect("it can be run");
    assert!(made.success(), "{name}");
    path
}

fn lines(from: impl Read + Send + 'static) -> Receiver<Value> {
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if say.send(value).is_err() {
                return;
            }
        }
    });
    said
}

/// An agent in a run of its own, and the run.
#[track_caller]
fn agent(home: &Home, name: &str, script: &str) -> (String, Client) {
    let mut run = String::new();
    let client = Client::inside(home, name, script, |script| {
        run = home.start(&["--slot", name, "--", "sh", "-c", script]);
    });
    (run, client)
}

/// The same, started by another agent.
#[track_caller]
fn agent_of(home: &Home, parent: &mut Client, name: &str) -> (String, Client) {
    let mut run = String::new();
    let client = Client::inside(home, name, "MCP", |script| {
        run = parent.start(json!({"command": script, "slot": name}));
    });
    (run, client)
}

#[test]
fn a_run_is_started_read_waited_for_and_stopped_with_proof() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let gate = home.path().join("gate");
    let script = format!(
        "echo $GREETING; echo oops >&2; until [ -e {} ]; do sleep 0.02; done; echo bye; sleep 1000",
        gate.display()
    );
    let started =
        client.call("start", json!({"command": script, "slot": "s", "env": {"GREETING": "hällo"}}));
    let run = started["run"].as_str().expect("it has an id").to_owned();
    assert_eq!(started["slot"], "s", "{started}");
    assert_eq!(started["already_running"], false, "{started}");
    assert_eq!(started["ignored"], json!([]), "{started}");
    assert!(started["containment"].is_string(), "{started}");
    let cwd = home.work().canonicalize().expect("it is there");
    assert_eq!(started["cwd"].as_str().map(PathBuf::from), Some(cwd), "{started}");

    let waited = client.call("wait", json!({"runs": ["s"], "until": "oops"}));
    assert_eq!(waited["found"]["stream"], "stderr", "{waited}");
    assert_eq!(waited["timed_out"], false, "{waited}");
    let polled = until("both are written", || {
        let polled = client.call("poll", json!({"run": run}));
        (polled["cursors"] == json!({"stdout": 7, "stderr": 5})).then_some(polled)
    });
    assert_eq!(polled["output"][0]["text"], "hällo\n", "{polled}");
    assert_eq!(polled["state"], "running", "{polled}");
    let begun = Instant::now();
    let late = client.call("wait", json!({"runs": [run], "timeout_ms": 50}));
    assert!(begun.elapsed() < SOON);
    assert_eq!((&late["timed_out"], &late["runs"][0]["state"]), (&true.into(), &"running".into()));

    // A poll that waits comes back with what is written meanwhile.
    let cursors = polled["cursors"].clone();
    let waiting =
        client.begin_call("poll", json!({"run": run, "cursors": cursors, "wait_ms": 60_000}));
    fs::write(&gate, "").expect("it can be written");
    let polled = client.answer(waiting)["result"]["structuredContent"].clone();
    assert_eq!(polled["output"][0]["text"], "bye\n", "{polled}");
    assert_eq!(polled["output"][0]["from"], 7, "{polled}");

    let stopped = client.call("stop", json!({"runs": [run]}));
    assert_eq!(stopped["all_dead"], true, "{stopped}");
    assert!(stopped["runs"][0]["proof"].is_object(), "{stopped}");
    assert_eq!(stopped["runs"][0]["end"]["cause"], "stopped", "{stopped}");
    let again = client.call("stop", json!({"runs": [run], "force": true}));
    assert_eq!(again["runs"][0]["end"]["cause"], "stopped", "the first cause is kept: {again}");
    let logged = client.call("log", json!({"run": run, "stream": "stdout"}));
    assert_eq!(logged["output"][0]["text"], "hällo\nbye\n", "{logged}");
    let part = client.call("log", json!({"run": run, "stream": "stdout", "offset": 7}));
    assert_eq!(part["output"][0]["text"], "bye\n", "{part}");
    assert_eq!(client.listed(), [run]);
    drop(client);
    home.check();
}

#[test]
fn much_output_is_given_in_parts_that_say_what_is_missing() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let run = client.start(json!({"command": "seq 1 100000"}));
    client.over(&run);
    let all: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let tail = client.call("log", json!({"run": run, "max_bytes": 1000}));
    let piece = &tail["output"][0];
    let text = piece["text"].as_str().expect("it is text");
    assert_eq!(text, &all[all.len() - 1000..]);
    assert_eq!(piece["left_out_before"], all.len() - 1000, "{piece}");
    let (mut read, mut cursors, mut polls) = (String::new(), json!({}), 0);
    loop {
        let request = json!({"run": run, "cursors": cursors, "max_bytes": 200_000});
        let polled = client.call("poll", request);
        read.push_str(polled["output"][0]["text"].as_str().expect("it is text"));
        cursors = polled["cursors"].clone();
        polls += 1;
        if polled["more"] == false {
            break;
        }
        assert!(polled["output"][0]["left_out_after"].as_u64() > Some(0), "{polls}");
    }
    assert!(read == all && polls > 1, "{polls}");
    drop(client);
    home.check();
}

#[test]
fn input_is_written_submitted_and_closed_and_what_has_none_says_so() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let run = client.start(json!({"command": ["cat"], "stdin": true}));
    client.call("write", json!({"run": run, "data": "one "}));
    client.call("submit", json!({"run": run, "line": "two"}));
    let waited = client.call("wait", json!({"runs": [run], "until": "one two\n"}));
    assert_eq!(waited["found"]["offset"], 0, "{waited}");
    let closed = client.call("close", json!({"run": run}));
    assert_eq!(closed["input"], "closed", "{closed}");
    assert_eq!(client.over(&run)["end"]["status"]["exited"], 0);

    let script = "read -r line; echo \"got <$line>\"";
    let run = client.start(json!({"command": script, "pty": true, "stdin": true}));
    let listed = client.call("submit", json!({"run": run, "line": "three"}));
    assert_eq!(listed["bytes"], 6, "{listed}");
    client.over(&run);
    let logged = client.call("log", json!({"run": run}));
    assert_eq!(logged["output"][0]["stream"], "terminal", "{logged}");
    let text = logged["output"][0]["text"].as_str().expect("it is text");
    assert!(text.contains("got <three>\n"), "{logged}");

    let run = client.start(json!({"command": "exec sleep 1000"}));
    let why = client.refused("write", json!({"run": run, "data": "x"}), "no_input");
    assert!(why.contains("stdin"), "{why}");
    client.refused("close", json!({"run": run}), "no_input");
    // What a run does not read is not closed yet, and that is said.
    let deaf = client.start(json!({"command": "exec sleep 1000", "stdin": true}));
    client.call("write", json!({"run": deaf, "data": "x".repeat(64 << 10)}));
    client.call("write", json!({"run": deaf, "data": "x".repeat(64 << 10)}));
    let closed = client.call("close", json!({"run": deaf}));
    assert_eq!(closed["input"], "unread", "{closed}");
    client.call("stop", json!({"runs": [run, deaf], "grace_ms": 0}));
    drop(client);
    home.check();
}

#[test]
fn the_same_command_in_a_slot_is_started_once_and_what_is_ignored_is_named() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let request = json!({"command": "exec sleep 1000", "slot": "server"});
    let first = client.call("start", request.clone());
    let again = client.call("start", request.clone());
    assert_eq!(again["run"], first["run"], "{again}");
    assert_eq!(again["already_running"], true, "{again}");
    let limited =
        json!({"command": "exec sleep 1000", "slot": "server", "limits": {"wall_ms": 5000}});
    let limited = client.call("start", limited);
    assert_eq!(limited["run"], first["run"], "{limited}");
    assert!(limited["ignored"][0].as_str().is_some_and(|s| s.contains("limits")), "{limited}");
    // Each by its name, if it is not what the run has.
    let more = json!({"command": "exec sleep 1000", "slot": "server", "watch": [{"pattern": "x"}],
        "heartbeat_ms": 5000, "notify": "never", "pty": true, "grace_ms": 1});
    let more = client.call("start", more);
    assert_eq!(more["run"], first["run"], "{more}");
    let ignored = more["ignored"][0].as_str().unwrap_or_default();
    assert!(ignored.starts_with("grace_ms, pty, notify, watch, heartbeat_ms: "), "{more}");
    assert_eq!(again["ignored"], json!([]), "{again}");
    let other = json!({"command": "exec sleep 1001", "slot": "server"});
    let why = client.refused("start", other, "slot_taken");
    assert!(why.contains(first["run"].as_str().expect("it has an id")), "{why}");
    // All at once, one of them is started and the others get it.
    let racing = json!({"command": "exec sleep 1000", "slot": "race"});
    let calls: Vec<u64> = (0..8).map(|_| client.begin_call("start", racing.clone())).collect();
    let answers: Vec<Value> = calls.into_iter().map(|id| client.answer(id)).collect();
    let told = |answer: &Value| answer["result"]["structuredContent"].clone();
    let new = answers.iter().filter(|a| told(a)["already_running"] == false).count();
    assert_eq!(new, 1, "{answers:?}");
    let first = told(&answers[0])["run"].clone();
    assert!(answers.iter().all(|a| told(a)["run"] == first), "{answers:?}");
    // What is being stopped does not do it any more.
    let deaf = json!({"command": "trap '' TERM; sleep 1000", "slot": "deaf"});
    let first = client.call("start", deaf.clone());
    let run = first["run"].as_str().expect("it has an id");
    let stop = format!("/v1/runs/{run}/stop");
    let (status, said) = home.ask("POST", &stop, "{\"grace_ms\":600000}");
    assert_eq!((status, &said["state"]), (200, &json!("stopping")), "{said}");
    let why = client.refused("start", deaf, "slot_taken");
    assert!(why.contains(run), "{why}");
    client.call("stop", json!({"runs": ["deaf"], "force": true}));
    let both = client.call("start", json!({"command": "true", "pty": true, "stdin": true}));
    assert!(both["ignored"][0].as_str().is_some_and(|s| s.contains("stdin")), "{both}");
    let empty = client.refused("start", json!({"command": []}), "bad_request");
    assert!(empty.contains("empty"), "{empty}");
    client.refused("start", json!({"command": ["no-such-program"]}), "command_not_found");
    client.call("stop", json!({"runs": ["server", "race"], "force": true}));
    drop(client);
    home.check();
}

#[test]
fn an_agent_sees_and_stops_only_what_it_started() {
    let home = Home::new();
    let (one, mut first) = agent(&home, "one", "MCP");
    // Its parents are gone and it has a session of its own.
    let (two, mut second) = agent(&home, "two", "(setsid MCP &) ; exec sleep 1000");
    let own = first.start(json!({"command": "exec sleep 1000", "slot": "own"}));
    let others = second.start(json!({"command": "exec sleep 1000", "slot": "others"}));
    assert_eq!(first.listed(), [own.as_str()]);
    assert_eq!(second.listed(), [others.as_str()]);
    for (target, why) in [
        (&others, "not started by the run you are in"),
        (&two, "not started by the run you are in"),
        (&one, "it is the run you are in"),
    ] {
        for tool in ["stop", "wait"] {
            let said = first.refused(tool, json!({"runs": [target]}), "not_yours");
            assert!(said.contains(why), "{tool}: {said}");
        }
        first.refused("poll", json!({"run": target}), "not_yours");
        first.refused("log", json!({"run": target}), "not_yours");
        first.refused("write", json!({"run": target, "data": "x"}), "not_yours");
        first.refused("close", json!({"run": target}), "not_yours");
    }
    // One that is not its own spares all that were named with it.
    first.refused("stop", json!({"runs": ["own", "others"]}), "not_yours");
    assert_eq!(home.show(&own)["state"], "running");
    // The slot of another is taken, and its run is not handed out.
    let taken = json!({"command": "exec sleep 1000", "slot": "others"});
    first.refused("start", taken, "slot_taken");

    let (child, mut third) = agent_of(&home, &mut first, "child");
    let grandchild = third.start(json!({"command": "exec sleep 1000"}));
    assert_eq!(third.listed(), [grandchild.as_str()]);
    let said = third.refused("stop", json!({"runs": [one]}), "not_yours");
    assert!(said.contains("it started the run you are in"), "{said}");
    let said = third.refused("stop", json!({"runs": [own]}), "not_yours");
    assert!(said.contains("beside the run you are in"), "{said}");
    let mut seen = first.listed();
    seen.sort();
    let mut all = vec![own.clone(), child.clone(), grandchild.clone()];
    all.sort();
    assert_eq!(seen, all, "its children's runs are its own");
    let stopped = first.call("stop", json!({"runs": [grandchild], "grace_ms": 0}));
    assert_eq!(stopped["all_dead"], true, "{stopped}");

    // Nobody's process is the user's.
    let mut user = Client::outside(&home);
    assert_eq!(user.listed().len(), 6);
    let stopped = user.call("stop", json!({"runs": [two, others], "grace_ms": 0}));
    assert_eq!(stopped["all_dead"], true, "{stopped}");
    drop((first, second, third, user));
    home.check();
}

#[test]
fn an_agent_is_told_its_notices_at_once_however_many_came_before_it() {
    let home = Home::new();
    let other = home.start(&["--", "true"]);
    home.kennel(&["wait", &other]);
    home.ok(&["down"]);
    // Each looked at for itself would take minutes.
    home.sql(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) \
         INSERT INTO journal (at_ms, run, fact, detail, notice) \
         SELECT 1, '{other}', '{{\"noted\":{{\"heartbeat\":' || i || '}}}}', \
             '{{\"heartbeat\":{{\"stdout\":0,\"stderr\":0,\"terminal\":0}}}}', \
             '{other}/heartbeat/' || i FROM n"
    ));
    let (agent, mut inside) = agent(&home, "agent", "MCP");
    let child = inside.start(json!({"command": "true"}));
    inside.call("wait", json!({"runs": [child]}));
    let told = inside.call("notices", json!({}));
    let kinds: Vec<&Value> =
        told["notices"].as_array().expect("a list").iter().map(|notice| &notice["id"]).collect();
    assert_eq!(kinds, [&format!("{child}/started/1"), &format!("{child}/ended/1")]);
    drop(inside);
    home.kennel(&["stop", &agent]);
    // They are no facts of the run's own life, which the checker would miss.
    home.sql("DELETE FROM journal WHERE notice LIKE '%/heartbeat/%'");
    home.check();
}

#[test]
fn who_comes_from_a_run_that_is_over_is_not_taken_for_the_user() {
    let mut home = Home::new();
    let other = home.start(&["--", "sleep", "1000"]);
    let gone = home.start(&["--", "true"]);
    home.kennel(&["wait", &gone]);
    home.set("KENNEL_RUN", &gone);
    let mut left_behind = Client::outside(&home);
    assert_eq!(left_behind.call("list", json!({}))["runs"], json!([]));
    let why = left_behind.refused("stop", json!({"runs": [other]}), "not_yours");
    assert!(why.contains("not started by the run you are in"), "{why}");
    let why = left_behind.refused("start", json!({"command": "true"}), "parent_ending");
    assert!(why.contains(&gone), "{why}");
    // A name that was never a run's says nothing.
    home.set("KENNEL_RUN", "nobody");
    let mut user = Client::outside(&home);
    assert_eq!(user.call("stop", json!({"runs": [other]}))["all_dead"], true);
    drop((left_behind, user));
    home.check();
}

#[test]
fn calls_under_way_are_answered_when_the_daemon_dies_and_the_next_one_is_found() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let run = client.start(json!({"command": "exec sleep 1000"}));
    for _ in 0..3 {
        let waiting = client.begin_call("wait", json!({"runs": [run], "timeout_ms": 600_000}));
        // Answered after it, so that it is under way.
        assert_eq!(client.listed(), [run.as_str()]);
        home.kill_daemon();
        let answer = client.answer(waiting);
        assert_eq!(answer["error"]["code"], NO_DAEMON, "{answer}");
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("may have been done or not"), "{answer}");
        let polled = client.call("poll", json!({"run": run}));
        assert_eq!(polled["state"], "running", "{polled}");
    }
    // One that was told to leave is back with the next call, and not before.
    let waiting = client.begin_call("wait", json!({"runs": [run], "timeout_ms": 600_000}));
    client.listed();
    home.ok(&["down"]);
    let answer = client.answer(waiting);
    let told =
        answer["error"]["message"].as_str().or(answer["result"]["content"][0]["text"].as_str());
    assert!(told.is_some_and(|said| said.contains("leav")), "{answer}");
    assert!(home.daemon().is_none(), "nobody started it again");
    client.call("stop", json!({"runs": [run], "force": true}));
    drop(client);
    home.check();
}

#[test]
fn an_agent_does_not_start_a_daemon_that_would_be_its_own() {
    let home = Home::new();
    // Some clients start their servers with hardly a variable.
    let (run, mut inside) = agent(&home, "agent", "exec env -u KENNEL_RUN MCP");
    assert_eq!(inside.listed(), Vec::<String>::new());
    home.kill_daemon();
    let id = inside.begin_call("list", json!({}));
    let answer = inside.answer(id);
    let said = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(said.contains("must not start one") && said.contains("outside"), "{answer}");
    assert!(home.daemon().is_none(), "nobody started it");
    assert_eq!(home.show(&run)["state"], "running", "any command outside starts it");
    assert_eq!(inside.listed(), Vec::<String>::new(), "it is found, and knows who asks");
    inside.refused("stop", json!({"runs": [run]}), "not_yours");
    drop(inside);
    home.check();
}

#[test]
fn whatever_is_said_is_answered_and_harms_nobody() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    for (line, id, code) in [
        ("{".to_owned(), Value::Null, -32_700),
        ("\u{1}\u{2}".to_owned(), Value::Null, -32_700),
        ("[]".to_owned(), Value::Null, -32_600),
        ("null".to_owned(), Value::Null, -32_600),
        (r#"{"id":"a","method":"tools/list"}"#.to_owned(), "a".into(), -32_600),
        (r#"{"jsonrpc":"2.0","id":"b","method":7}"#.to_owned(), "b".into(), -32_600),
        (r#"{"jsonrpc":"2.0","id":"c","method":"no/such"}"#.to_owned(), "c".into(), -32_601),
        (
            r#"{"jsonrpc":"2.0","id":"d","method":"tools/call","params":{"name":"kill_all"}}"#
                .to_owned(),
            "d".into(),
            -32_602,
        ),
        (
            format!(
                r#"{{"jsonrpc":"2.0","id":"e","method":"tools/list","params":"{}"}}"#,
                "x".repeat(5 << 20)
            ),
            "e".into(),
            -32_600,
        ),
        (format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)), Value::Null, -32_700),
    ] {
        client.say(&line);
        let answer = match id.is_null() {
            true => client.from.recv_timeout(PATIENCE).expect("it is answered"),
            false => client.answer(id),
        };
        let shown: String = line.chars().take(80).collect();
        assert_eq!(answer["error"]["code"], code, "{shown}: {answer}");
    }
    for (tool, arguments) in [
        ("start", json!({})),
        ("start", json!({"command": 7})),
        ("start", json!({"command": "true", "no_such_option": 1})),
        ("start", json!({"command": "true", "limits": {"wall_ms": 0}})),
        ("start", json!({"command": "true", "cwd": "relative"})),
        ("start", json!({"command": "true", "env": {"A=B": "c"}})),
        ("start", json!({"command": ["a\u{0}b"]})),
        ("wait", json!({"runs": []})),
        ("wait", json!({"runs": vec!["x"; 100]})),
        ("poll", json!({"run": "x", "cursors": {"stdout": -1}})),
    ] {
        client.refused(tool, arguments, "bad_request");
    }
    for (tool, arguments) in [
        ("poll", json!({"run": "nobody"})),
        ("stop", json!({"runs": ["nobody"]})),
        ("wait", json!({"runs": ["nobody"]})),
    ] {
        client.refused(tool, arguments, "run_not_found");
    }
    // Far behind its end there is nothing, and that is no error.
    let run = client.start(json!({"command": "echo x"}));
    client.over(&run);
    let far = client.call("poll", json!({"run": run, "cursors": {"stdout": 1_u64 << 60}}));
    assert_eq!(far["output"][0]["text"], "", "{far}");
    assert_eq!(client.listed(), [run]);
    drop(client);
    home.check();
}

#[test]
fn many_calls_at_once_wait_for_nobody_and_too_many_are_told_so() {
    let home = Home::new();
    let mut client = Client::outside(&home);
    let run = client.start(json!({"command": "exec sleep 1000"}));
    let wait = json!({"runs": [run], "timeout_ms": 600_000});
    let waits: Vec<u64> = (0..60).map(|_| client.begin_call("wait", wait.clone())).collect();
    assert_eq!(client.listed(), [run.as_str()], "others are answered meanwhile");
    let more: Vec<u64> = (0..20).map(|_| client.begin_call("wait", wait.clone())).collect();
    let busy = client.answer(more[19]);
    assert_eq!(busy["result"]["structuredContent"]["error"]["code"], "busy", "{busy}");
    // One that is given up makes room.
    let given_up = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": waits[0]}});
    client.say(&given_up.to_string());
    until("there is room", || {
        let id = client.begin_call("list", json!({}));
        (client.answer(id)["result"]["isError"] == false).then_some(())
    });
    home.ok(&["kill", &run]);
    for id in waits.into_iter().skip(1).chain(more.into_iter().take(4)) {
        let answer = client.answer(id);
        let told = &answer["result"]["structuredContent"];
        assert_eq!(told["runs"][0]["end"]["cause"], "killed", "{answer}");
    }
    drop(client);
    home.check();
}

/// A scripted agent that speaks MCP after its first turns, held to limits.
#[track_caller]
fn counted_agent(home: &Home, limits: &[&str], script: &str) -> (String, Client) {
    let mut run = String::new();
    let client = Client::inside(home, "agent", script, |script| {
        let mut args = limits.to_vec();
        args.extend(["--slot", "agent", "--", "claude", "-p", script]);
        run = home.start(&args);
    });
    (run, client)
}

fn limit_of(home: &Home, run: &str, kind: &str) -> Value {
    let report = home.json(&["limits", run]);
    let limits = report["limits"].as_array().expect("it is a list");
    limits.iter().find(|limit| limit["kind"] == kind).expect("it has that limit").clone()
}

#[test]
fn what_children_use_counts_for_the_run_that_started_them() {
    let home = meter::home();
    let (run, mut agent) = counted_agent(&home, &["--max-tool-turns", "10"], "tool 1; tool 2; MCP");
    until("it is counted", || (home.show(&run)["usage"]["tool_turns"] == 2).then_some(()));
    let child = |script: String| json!({"command": ["claude", "-p", script]});

    // What is left is all a child gets, and what it uses is its parent's.
    let first = agent.call("start", child(responses("tool", 1, 5)));
    assert!(first["notes"][0].as_str().is_some_and(|s| s.contains("is 8")), "{first}");
    let id = first["run"].as_str().expect("it has an id").to_owned();
    assert_eq!(home.show(&id)["limits"]["max_tool_turns"], 8);
    agent.over(&id);
    let standing = until("it is charged", || {
        let standing = limit_of(&home, &run, "max_tool_turns");
        (standing["used"] == 7.0).then_some(standing)
    });
    assert_eq!(standing["children"], 5.0, "{standing}");
    assert!(home.ok(&["limits", &run]).contains("5 of it used by the runs it started"));
    // The dead count for the next daemon, too, and nothing counts twice.
    home.kill_daemon();
    until("it is adopted", || (home.show(&run)["usage"]["tool_turns"] == 2).then_some(()));
    let more = json!({"command": ["claude", "-p", responses("tool", 1, 2)],
        "limits": {"max_turns": 2}});
    let refused = until("it knows how much is left", || {
        let id = agent.begin_call("start", more.clone());
        let answer = agent.answer(id);
        let told = answer["result"]["structuredContent"].clone();
        (told["run"].is_string()).then_some(told)
    });
    assert_eq!(refused["notes"], json!([]), "2 of 3 is not too much: {refused}");
    agent.over(refused["run"].as_str().expect("it has an id"));
    until("it is charged", || {
        (limit_of(&home, &run, "max_tool_turns")["used"] == 9.0).then_some(())
    });

    // A grandchild of a child that nobody counts is counted.
    let mut between = String::new();
    let mut middle = Client::inside(&home, "middle", "MCP", |script| {
        between = agent.start(json!({"command": script}));
    });
    let last = middle.call("start", child(format!("{}; sleep 1000", responses("tool", 1, 3))));
    assert!(last["notes"][0].as_str().is_some_and(|s| s.contains("is 1")), "{last}");
    let end = until("it is stopped", || {
        let shown = home.show(&run);
        (shown["state"] == "dead").then(|| shown["end"].clone())
    });
    assert_eq!(end["cause"], "limit", "{end}");
    assert_eq!(end["limit"]["kind"], "max_tool_turns", "{end}");
    assert!(end["limit"]["used"].as_f64() >= Some(10.0), "{end}");
    // What it started ends with it.
    for run in [&between, last["run"].as_str().expect("it has an id")] {
        until("it is stopped too", || (home.show(run)["state"] == "dead").then_some(()));
    }
    drop((agent, middle));
    let usage = home.json(&["usage", "--by", "run"]);
    let turns = usage["total"]["tool_turns"].as_u64().expect("a number");
    assert!((10..=12).contains(&turns), "each is counted once in all: {usage}");
    home.check();
}

#[test]
fn a_child_gets_no_more_than_its_parent_has_left_and_what_nobody_counts_any_amount() {
    let home = meter::home();
    let limits = ["--max-tokens", "4000", "--max-budget-usd", "100"];
    let (run, mut agent) = counted_agent(&home, &limits, "turn 1; turn 2; turn 3; MCP");
    until("it is counted", || (home.show(&run)["usage"]["tokens"]["output"] == 300).then_some(()));
    let child = json!({"command": ["claude", "-p", "turn 1; sleep 1000"],
        "limits": {"max_budget_usd": 500.0, "max_tokens": 10}});
    let plain = agent.call("start", json!({"command": "exec sleep 1000"}));
    assert_eq!(plain["notes"], json!([]), "{plain}");
    let started = agent.call("start", child);
    let notes = started["notes"].as_array().expect("it is a list");
    assert_eq!(notes.len(), 1, "{started}");
    assert!(notes[0].as_str().is_some_and(|s| s.contains("max_budget_usd is 99.9")));
    // It reaches its own limit, and with that its parent's.
    let end = until("it is stopped", || {
        let shown = home.show(&run);
        (shown["state"] == "dead").then(|| shown["end"].clone())
    });
    assert_eq!(end["limit"]["kind"], "max_tokens", "{end}");
    assert_eq!(end["limit"]["used"], 4400.0, "{end}");
    drop(agent);
    home.check();
}

#[test]
fn notices_of_its_own_runs_are_an_agents_until_it_acknowledges_them() {
    let home = Home::new();
    let (one, mut first) = agent(&home, "one", "MCP");
    let (_, mut second) = agent(&home, "two", "MCP");
    let others = second.start(json!({"command": "echo other"}));
    second.over(&others);
    let nothing = first.call("notices", json!({}));
    assert_eq!(nothing["notices"], json!([]), "{nothing}");
    let waiting = first.begin_call("notices", json!({"wait_ms": 60_000}));
    let watch = json!([{"pattern": "needle [0-9]+", "mode": "once"}]);
    let own =
        first.start(json!({"command": "echo a needle 7; echo a needle 8; exit 3", "watch": watch}));
    let told = first.answer(waiting)["result"]["structuredContent"].clone();
    assert_eq!(told["consumer"], format!("run:{one}"), "{told}");
    assert_eq!(told["notices"][0]["run"], own, "{told}");
    let kinds = |told: &Value| -> Vec<String> {
        let list = told["notices"].as_array().expect("it is a list");
        assert!(list.iter().all(|notice| notice["run"] == own), "{told}");
        list.iter().map(|notice| notice["kind"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let told = until("its end is told", || {
        let told = first.call("notices", json!({}));
        kinds(&told).contains(&"ended".to_owned()).then_some(told)
    });
    assert_eq!(kinds(&told), ["started", "watch_match", "ended"], "{told}");
    let ended = &told["notices"][2];
    assert_eq!(ended["end"]["status"]["exited"], 3, "{ended}");
    assert_eq!(
        ended["tail"]["stdout"]["text"],
        "a needle 7
a needle 8
",
        "{ended}"
    );
    // Reading acknowledges nothing, and what is acknowledged is not told again.
    let again = first.call("notices", json!({"limit": 1}));
    assert_eq!((kinds(&again), &again["more"]), (vec!["started".to_owned()], &true.into()));
    let acked = first.call("ack", json!({"seq": ended["seq"]}));
    assert_eq!(acked["acked"], ended["seq"], "{acked}");
    home.kill_daemon();
    home.ok(&["ps"]);
    assert_eq!(first.call("notices", json!({}))["notices"], json!([]));
    first.refused("ack", json!({"seq": 1_000_000}), "bad_request");
    first.refused("notices", json!({"consumer": "run:other"}), "bad_request");
    // Another consumer has its own place.
    let mut user = Client::outside(&home);
    let all = user.call("notices", json!({"limit": 100}));
    let all = all["notices"].as_array().expect("it is a list");
    assert!(all.iter().any(|notice| notice["run"] == others), "{all:?}");
    let quiet = first.start(json!({"command": "true", "notify": "never"}));
    first.over(&quiet);
    assert_eq!(first.call("notices", json!({}))["notices"], json!([]));
    drop((first, second, user));
    home.check();
}

/// One request over HTTP: status and body.
fn post(mut stream: impl Read + Write, headers: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())))
}

#[test]
fn over_http_the_checks_come_first_and_who_asks_is_known_by_the_socket() {
    let home = Home::new();
    let up = home.up(&["--listen", "127.0.0.1:0"]);
    let address = up.seen.split("http://").nth(1).and_then(|rest| rest.split(';').next());
    let address = address.expect("it says where").to_owned();
    let token = fs::read_to_string(home.state().join("token")).expect("it is there");
    let good = format!("host: {address}\r\nauthorization: Bearer {}\r\n", token.trim());
    let call = |tool: &str, arguments: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments}})
    };
    let tcp = || {
        let stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        stream
    };
    let list = call("list", json!({}));
    for (headers, status) in [
        (format!("host: {address}\r\n"), 401),
        (good.replace(&address, "evil.example"), 403),
        (format!("{good}origin: http://evil.example\r\n"), 403),
        (format!("{good}origin: null\r\n"), 403),
        (good.replace("Bearer ", "Bearer x"), 401),
        (good.clone(), 200),
        (format!("{good}origin: http://{address}\r\n"), 200),
    ] {
        let (got, answer) = post(tcp(), &headers, &list);
        assert_eq!(got, status, "{headers}: {answer}");
    }
    let start = call("start", json!({"command": "exec sleep 1000", "slot": "http"}));
    let (_, answer) = post(tcp(), &good, &start);
    let started = &answer["result"]["structuredContent"];
    assert_eq!(started["state"], "running", "{answer}");
    assert!(started["notes"][0].is_string(), "whose environment it has is said: {answer}");

    // On the private socket a process of a run is that, and we are the user.
    let (_, answer) = post(home.connect(), "host: kennel\r\n", &list);
    assert_eq!(answer["result"]["structuredContent"]["runs"].as_array().map(Vec::len), Some(1));
    let request = home.path().join("request");
    let body = list.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: kennel\r\nconnection: close\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    fs::write(&request, head).expect("it can be written");
    let script = format!(
        "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect({:?})\n\
         s.sendall(open({:?},'rb').read())\nsys.stdout.buffer.write(s.makefile('rb').read())\n",
        home.state().join("socket").display().to_string(),
        request.display().to_string()
    );
    if Command::new("python3").arg("-c").arg("").status().is_ok_and(|s| s.success()) {
        let said = home.kennel(&["run", "--", "python3", "-c", &script]);
        assert!(said.out.contains(r#""runs":[]"#), "{said:?}");
    } else {
        kennel_tests::skipped("MCP over HTTP from a run", "there is no python3");
    }
    home.ok(&["kill", "http"]);
    home.check();
}
