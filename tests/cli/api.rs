//! The API as others use it: events that can be resumed, metrics, TCP behind its checks.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use kennel_tests::{PATIENCE, until};
use serde_json::Value;

use super::home::Home;

/// A stream of server-sent events.
struct Stream(BufReader<std::os::unix::net::UnixStream>);

impl Stream {
    fn open(home: &Home, after: Option<u64>) -> Self {
        let mut stream = home.connect();
        let last = after.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!(
            "GET /v1/events HTTP/1.1\r\nhost: kennel\r\naccept: text/event-stream\r\n{last}\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it is taken");
        Self(BufReader::new(stream))
    }

    /// The next event: its id and its data. `None` when the stream ends.
    fn next(&mut self) -> Option<(u64, Value)> {
        let (mut id, mut data) = (None, None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.parse().ok();
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = serde_json::from_str(text).ok();
            } else if line.is_empty()
                && let (Some(id), Some(data)) = (id, data.take())
            {
                return Some((id, data));
            }
        }
    }
}

fn kinds_of(events: &[Value], run: &str) -> Vec<String> {
    let own = events.iter().filter(|event| event["run"] == run);
    own.map(|event| event["kind"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_stream_of_events_goes_on_where_it_was_cut_off_whoever_was_killed() {
    let home = Home::new();
    let first = home.start(&["--", "sleep", "1000"]);
    let mut stream = Stream::open(&home, None);
    let (mut events, mut last) = (Vec::new(), 0);
    while kinds_of(&events, &first).len() < 2 {
        let (id, event) = stream.next().expect("it goes on");
        assert!(id > last, "numbers grow");
        assert_eq!(event["seq"], id);
        last = id;
        events.push(event);
    }
    home.kill_daemon();
    assert!(stream.next().is_none(), "it ends with its daemon");
    home.ok(&["kill", &first]);
    let second = home.start(&["--", "true"]);
    home.ok(&["wait", &second]);
    let mut stream = Stream::open(&home, Some(last));
    while !kinds_of(&events, &second).contains(&"ended".to_owned()) {
        let (id, event) = stream.next().expect("it goes on");
        assert!(id > last, "nothing is told twice");
        last = id;
        events.push(event);
    }
    for (run, begun) in [(&first, ["admitted", "started"]), (&second, ["admitted", "started"])] {
        let kinds = kinds_of(&events, run);
        assert_eq!(kinds[..2], begun, "{run}");
        assert_eq!(kinds.iter().filter(|kind| *kind == "ended").count(), 1, "{kinds:?}");
    }
    let ended = events.iter().find(|e| e["kind"] == "ended" && e["run"] == *first);
    let ended = ended.expect("it is there");
    assert_eq!(ended["end"]["cause"], "killed");
    assert!(ended["proof"]["rests_on"].is_array(), "{ended}");
    home.check();
}

#[test]
fn a_question_for_more_events_waits_for_them_and_no_longer_than_asked() {
    let home = Home::new();
    home.ok(&["ps"]);
    let last = home.ask("GET", "/v1/daemon", "").1["last_seq"].as_u64().expect("a number");
    let (status, page) = home.ask("GET", &format!("/v1/events?after={last}&wait_ms=1"), "");
    assert_eq!((status, page["events"].as_array().map(Vec::len)), (200, Some(0)));
    assert_eq!(page["next"], last, "to be asked for again");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            home.ask("GET", &format!("/v1/events?after={last}&wait_ms=20000&limit=1"), "").1
        });
        home.ok(&["run", "--", "true"]);
        waiting.join().expect("it answers")
    });
    assert_eq!(waiting["events"][0]["kind"], "admitted", "{waiting}");
    for bad in ["after=x", "limit=-1", "nothing=1"] {
        let (status, error) = home.ask("GET", &format!("/v1/events?{bad}"), "");
        assert_eq!((status, &error["error"]["code"]), (400, &"bad_request".into()), "{bad}");
    }
    home.check();
}

#[test]
fn metrics_say_what_happened() {
    let home = Home::new();
    home.ok(&["run", "--", "true"]);
    let run = home.start(&["--", "sleep", "1000"]);
    let value = |name: &str| {
        let (status, text) = home.ask_text("GET", "/metrics", "");
        assert_eq!(status, 200);
        assert!(text.ends_with("# EOF\n"), "{text}");
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert_eq!(value(r#"kennel_runs{state="running"}"#), Some(1.0));
    assert_eq!(value(r#"kennel_runs_ended_total{cause="exit"}"#), Some(1.0));
    assert!(value("kennel_journal_commit_seconds_count") > Some(2.0));
    assert_eq!(value("kennel_survivors"), Some(0.0));
    home.kill_daemon();
    home.ok(&["ps"]);
    until("it is adopted", || (value("kennel_runs_adopted_total") == Some(1.0)).then_some(()));
    home.ok(&["kill", &run]);
    assert_eq!(value("kennel_stop_to_proof_seconds_count"), Some(1.0));
    home.check();
}

/// Asks over TCP with these headers: the status and the body.
fn ask_tcp(address: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let head = format!("GET /v1/runs HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, answer)
}

#[test]
fn over_tcp_only_those_with_the_token_from_this_machine_are_served() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let said = home.kennel(&["up", "--listen", "0.0.0.0:0"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("other machines"), "{said:?}");
    assert!(!home.state().join("token").exists(), "nothing was opened");

    let up = home.up(&["--listen", "127.0.0.1:0"]);
    let address = up.seen.split("http://").nth(1).and_then(|rest| rest.split(';').next());
    let address = address.expect("it says where").to_owned();
    let file = home.state().join("token");
    let token = fs::read_to_string(&file).expect("it is there");
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let bearer = format!("authorization: Bearer {token}\r\n");
    let host = format!("host: {address}\r\n");
    for (headers, status, word) in [
        (format!("{host}{bearer}"), 200, "[]"),
        (host.clone(), 401, "bad_token"),
        (format!("{host}authorization: Bearer {}\r\n", "0".repeat(64)), 401, "bad_token"),
        (format!("host: evil.example\r\n{bearer}"), 403, "bad_host"),
        (format!("{host}origin: http://evil.example\r\n{bearer}"), 403, "bad_origin"),
        (format!("{host}origin: http://{address}\r\n{bearer}"), 200, "[]"),
    ] {
        let (got, answer) = ask_tcp(&address, &headers);
        assert_eq!(got, status, "{headers}: {answer}");
        assert!(answer.contains(word), "{headers}: {answer}");
    }
    home.ok(&["down"]);
    drop(up);
}

#[test]
fn a_limit_that_nobody_enforces_refuses_the_start() {
    let home = Home::new();
    home.ok(&["ps"]);
    let body = r#"{"command":["true"],"cwd":"/","env":[],"limits":{"max_turns":3}}"#;
    let (status, error) = home.ask("POST", "/v1/runs", body);
    assert_eq!(status, 422, "{error}");
    assert_eq!(error["error"]["code"], "limit_not_enforceable");
    assert!(error["error"]["message"].as_str().is_some_and(|m| m.contains("max_turns")));
    assert_eq!(home.all_runs().len(), 0);
    let runs = fs::read_dir(home.state().join("runs")).expect("it is there").count();
    assert_eq!(runs, 0, "a refused start leaves no directory");
    home.check();
}

#[test]
fn a_host_is_full_when_it_has_no_more_room() {
    let home = Home::new();
    let up = home.up(&["--max-runs", "1"]);
    let run = home.start(&["--", "sleep", "1000"]);
    let said = home.kennel(&["run", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("1 runs already"), "{said:?}");
    home.ok(&["kill", &run]);
    home.ok(&["run", "--", "true"]);
    home.check();
    drop(up);
}
