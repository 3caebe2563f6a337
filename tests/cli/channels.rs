//! Channels: webhooks, programs and agents are told of each notice, once in effect, whatever is
//! killed in between and however badly a receiver behaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac};
use kennel_process::Signal;
use kennel_tests::until;
use serde_json::Value;
use sha2::Sha256;

use super::home::{Home, make_program};
use super::receiver::{Answer, Receiver};

/// Writes the user's configuration.
fn configure(home: &Home, text: &str) {
    let dir = home.path().join("config");
    fs::create_dir_all(&dir).expect("it can be made");
    fs::write(dir.join("new"), text).expect("it can be written");
    fs::rename(dir.join("new"), dir.join("config.toml")).expect("it can be put there");
}

fn webhook(receiver: &Receiver, more: &str) -> String {
    let url = receiver.url();
    format!("[[channel]]\nname = \"hook\"\nkind = \"webhook\"\nurl = \"{url}\"\n{more}\n")
}

/// Short pauses: what is tried again is tried soon.
const SOON: &str = "first_pause = \"10ms\"";
const ENDS: &str = "kinds = [\"ended\"]\nfirst_pause = \"10ms\"";

fn channel(home: &Home, name: &str) -> Value {
    let out = home.ok(&["--json", "channels"]);
    let all = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
    let mut found = all.filter(|channel| channel["name"] == name);
    found.next().unwrap_or_else(|| panic!("there is no channel {name}: {out}"))
}

/// Waits until a channel has nothing more to deliver, and acknowledged all of it.
#[track_caller]
fn done(home: &Home, name: &str) -> Value {
    until("all is delivered", || Some(channel(home, name)).filter(|known| known["pending"] == 0))
}

fn ended(run: &str) -> String {
    format!("{run}/ended/1")
}

/// A run that ends when its file is there.
fn held_run(home: &Home, name: &str) -> (String, PathBuf) {
    let file = home.path().join(name);
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", file.display());
    (home.start(&["--", "sh", "-c", &wait]), file)
}

#[test]
fn a_webhook_gets_each_notice_once_in_order_signed_and_named() {
    let home = Home::new();
    let receiver = Receiver::new();
    configure(&home, &webhook(&receiver, "secret = \"s3cret\""));
    let run = home.start(&["--", "sh", "-c", "echo done; exit 3"]);
    let posts = receiver.wait(2);
    let kinds: Vec<_> = posts.iter().map(|post| post.header("kennel-event").unwrap()).collect();
    assert_eq!(kinds, ["started", "ended"]);
    for post in &posts {
        let notice = post.json();
        assert_eq!(notice["id"], *post.key());
        assert_eq!(notice["run"], *run);
        assert_eq!(post.header("content-type"), Some("application/json"));
        let signature = post.header("kennel-signature").expect("it is signed");
        let (time, hex) = signature.split_once(",v1=").expect("both parts are there");
        let seconds = time.strip_prefix("t=").expect("the time is there");
        let mut mac = Hmac::<Sha256>::new_from_slice(b"s3cret").expect("any length");
        mac.update(format!("{seconds}.{}", post.body).as_bytes());
        let expected: String =
            mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }
    let end = posts[1].json();
    assert_eq!(end["end"]["status"]["exited"], 3);
    assert!(end["tail"]["stdout"]["text"].as_str().is_some_and(|text| text.contains("done")));
    let known = done(&home, "hook");
    assert_eq!((known["delivered"].as_u64(), known["dead_letters"].as_u64()), (Some(2), Some(0)));
    assert_eq!(receiver.posts().len(), 2);
    home.check();
}

#[test]
fn whatever_a_receiver_does_the_same_notice_comes_again_until_it_is_taken() {
    let home = Home::new();
    let (receiver, other) = (Receiver::new(), Receiver::new());
    let away = format!("http://{}/steal", other.address);
    receiver.then([
        Answer::Status(500, "x-none", String::new()),
        Answer::CloseEarly,
        Answer::Status(302, "location", away.clone()),
        Answer::Status(307, "location", away),
        Answer::Hold,
        Answer::Status(503, "retry-after", "0".to_owned()),
    ]);
    configure(&home, &webhook(&receiver, &format!("answer_within = \"500ms\"\n{ENDS}")));
    let run = home.start(&["--", "true"]);
    let posts = receiver.wait(7);
    assert!(posts.iter().all(|post| post.key() == ended(&run)), "{posts:#?}");
    let bodies: BTreeSet<_> = posts.iter().map(|post| post.body.clone()).collect();
    assert_eq!(bodies.len(), 1, "the same notice is the same, byte for byte");
    let known = done(&home, "hook");
    assert_eq!((known["delivered"].as_u64(), known["failed"].as_u64()), (Some(1), Some(6)));
    assert_eq!(known["dead_letters"], 0);
    assert_eq!(receiver.posts().len(), 7);
    assert!(other.posts().is_empty(), "a redirect was followed");
    home.check();
}

#[test]
fn a_daemon_killed_during_a_webhook_sends_the_same_notice_again() {
    let home = Home::new();
    let receiver = Receiver::new();
    receiver.then([Answer::Hold]);
    configure(&home, &webhook(&receiver, ENDS));
    let run = home.start(&["--", "true"]);
    receiver.wait(1);
    home.kill_daemon();
    receiver.release();
    home.ok(&["ps"]);
    let posts = receiver.wait(2);
    assert!(posts.iter().all(|post| post.key() == ended(&run)));
    done(&home, "hook");
    assert_eq!(receiver.posts().len(), 2, "nothing is sent a third time");
    home.check();
}

#[test]
fn a_daemon_killed_between_delivery_and_acknowledgement_loses_nothing_and_doubles_no_effect() {
    let home = Home::new();
    let receiver = Receiver::new();
    receiver.then([Answer::Hold]);
    configure(&home, &webhook(&receiver, ENDS));
    let run = home.start(&["--", "true"]);
    receiver.wait(1);
    // It stands still while the answer comes: delivered, and it cannot know.
    let daemon = until("a daemon is up", || home.daemon());
    let pid = daemon.identity().pid;
    daemon.signal(Signal::STOP).expect("it can be stopped");
    until("it stands still", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.contains(") T ").then_some(())
    });
    receiver.release();
    daemon.signal(Signal::KILL).expect("it can be killed");
    until("its lock is free", || {
        let lock = fs::File::open(home.state().join("lock")).ok()?;
        lock.try_lock().ok()
    });
    let next = home.start(&["--", "true"]);
    let posts = receiver.wait(3);
    let keys: Vec<&str> = posts.iter().map(super::receiver::Post::key).collect();
    assert_eq!(keys, [ended(&run), ended(&run), ended(&next)], "in order, by one key");
    done(&home, "hook");
    assert_eq!(receiver.posts().len(), 3);
    home.check();
}

#[test]
fn what_ends_while_no_daemon_lives_is_told_by_the_next_one() {
    let home = Home::new();
    let receiver = Receiver::new();
    configure(&home, &webhook(&receiver, ENDS));
    let (run, file) = held_run(&home, "go");
    home.kill_daemon();
    fs::write(file, "").expect("it can be written");
    until("it is over", || {
        let dir = fs::File::open(home.run_dir(&run)).ok()?;
        dir.try_lock().ok()
    });
    assert!(receiver.posts().is_empty());
    home.ok(&["ps"]);
    receiver.wait(1);
    done(&home, "hook");
    let posts = receiver.posts();
    assert_eq!(posts.iter().map(super::receiver::Post::key).collect::<Vec<_>>(), [ended(&run)]);
    home.check();
}

#[test]
fn what_is_given_up_on_is_kept_shown_and_delivered_again_when_asked() {
    let home = Home::new();
    let receiver = Receiver::new();
    let no = Answer::Status(500, "x-none", String::new());
    receiver.then([no.clone(), no.clone(), Answer::Status(410, "x-none", String::new())]);
    configure(&home, &webhook(&receiver, &format!("tries = 2\n{ENDS}")));
    let first = home.start(&["--", "true"]);
    receiver.wait(2);
    let gone = home.start(&["--", "true"]);
    receiver.wait(3);
    let taken = home.start(&["--", "true"]);
    receiver.wait(4);
    let known = done(&home, "hook");
    assert_eq!(known["dead_letters"], 2);
    let letters = known["letters"].as_array().expect("it is a list");
    let of = |n: usize| (letters[n]["notice"].clone(), letters[n]["tries"].clone());
    assert_eq!(of(0), (ended(&gone).into(), 1.into()), "410 is never tried again");
    assert_eq!(of(1), (ended(&first).into(), 2.into()));
    let doctor = home.kennel(&["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("given up on 2 notices"), "{doctor:?}");

    // Kept over a restart, and given up on again while nobody takes them.
    home.kill_daemon();
    receiver.usually(Some(no));
    assert_eq!(home.json(&["channels", "retry", "hook"])["letters"], 2);
    receiver.wait(6);
    until("both were tried", || {
        let known = channel(&home, "hook");
        let letters = known["letters"].as_array()?;
        letters.iter().all(|letter| letter["again"] == false).then_some(())
    });
    assert_eq!(channel(&home, "hook")["dead_letters"], 2);
    receiver.usually(None);
    home.ok(&["channels", "retry", "hook"]);
    let posts = receiver.wait(8);
    until("none is left", || (channel(&home, "hook")["dead_letters"] == 0).then_some(()));
    let keys: Vec<&str> = posts.iter().map(super::receiver::Post::key).collect();
    assert_eq!(keys[3], ended(&taken));
    assert_eq!(keys[6..], [ended(&first), ended(&gone)]);
    assert!(home.kennel(&["doctor"]).out.contains("1 channels deliver"));
    home.check();
}

#[test]
fn a_channel_begins_when_it_is_written_and_keeps_its_place_when_it_is_changed() {
    let home = Home::new();
    let (old, new) = (Receiver::new(), Receiver::new());
    home.ok(&["run", "--", "true"]);
    // Looks at the configuration: from here on everything is news.
    home.ok(&["channels"]);
    old.usually(Some(Answer::Status(500, "x-none", String::new())));
    configure(&home, &webhook(&old, ENDS));
    assert_eq!(channel(&home, "hook")["pending"], 0, "what was before is nothing to it");
    let run = home.start(&["--", "true"]);
    old.wait(2);
    configure(&home, &webhook(&new, ENDS));
    home.ok(&["channels"]);
    let posts = new.wait(1);
    assert_eq!(posts[0].key(), ended(&run));
    done(&home, "hook");
    let tested = home.json(&["channels", "test", "hook"]);
    assert_eq!(tested["delivered"], true, "{tested}");
    let posts = new.wait(2);
    assert_eq!(posts[1].header("kennel-event"), Some("test"));
    assert_eq!(tested["id"], *posts[1].key());
    // What cannot be read changes nothing, and is told.
    configure(&home, "[[channel]]\nname = 1");
    let last = home.start(&["--", "true"]);
    assert_eq!(new.wait(3)[2].key(), ended(&last));
    let other = home.kennel(&["channels", "test", "nobody"]);
    assert!(other.code != 0 && other.err.contains("no channel"), "{other:?}");
    home.check();
}

#[test]
fn a_channel_that_missed_something_tells_so_first_whatever_it_wants_to_hear_of() {
    let home = Home::new();
    let receiver = Receiver::new();
    configure(&home, &webhook(&receiver, ENDS));
    home.ok(&["channels"]);
    let told = home.start(&["--", "true"]);
    assert_eq!(receiver.wait(1)[0].key(), ended(&told));
    done(&home, "hook");
    configure(&home, "");
    home.ok(&["channels"]);
    let missed = home.start(&["--", "true"]);
    home.ok(&["wait", &missed]);
    home.ok(&["down"]);
    // Longer than its patience has passed.
    home.sql("UPDATE run SET ended_ms = 1; UPDATE consumer SET acked_ms = 1");
    let up = home.up(&["--keep-age", "1h"]);
    until("it is removed", || (home.kennel(&["show", &missed]).code != 0).then_some(()));
    configure(&home, &webhook(&receiver, ENDS));
    home.ok(&["channels"]);
    let new = home.start(&["--", "true"]);
    let posts = receiver.wait(3);
    assert_eq!(posts[1].header("kennel-event"), Some("lagged"));
    assert_eq!(posts[2].key(), ended(&new));
    done(&home, "hook");
    assert_eq!(receiver.posts().len(), 3, "it is told once");
    home.check();
    drop(up);
}

#[test]
fn notices_leave_this_machine_only_for_who_says_so() {
    let home = Home::new();
    for url in ["http://0.0.0.0:9/", "http://192.0.2.1/", "http://h.example/"] {
        let text = format!("[[channel]]\nname = \"far\"\nkind = \"webhook\"\nurl = \"{url}\"\n");
        configure(&home, &text);
        let said = home.kennel(&["config", "check"]);
        assert!(said.code != 0, "{said:?}");
        assert!(format!("{}{}", said.out, said.err).contains("remote = true"), "{said:?}");
        assert_eq!(home.ok(&["--json", "channels"]), "", "it is not served");
    }
    home.check();
}

/// A program that writes a line for each notice, and what it is configured as.
fn script(home: &Home, body: &str) -> PathBuf {
    let (from, to) = (home.path().join("script"), home.path().join("tell"));
    fs::write(&from, format!("#!/bin/sh\n{body}\n")).expect("it can be written");
    make_program(&from, &to);
    to
}

fn command(program: &Path, more: &str) -> String {
    let program = program.display();
    format!("[[channel]]\nname = \"tell\"\nkind = \"command\"\ncommand = [\"{program}\"]\n{more}\n")
}

fn hooks(home: &Home) -> Vec<Value> {
    let own = |run: &Value| run["slot"] == "channel:tell";
    home.all_runs().into_iter().filter(own).collect()
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_program_is_told_of_each_notice_once_as_a_run_that_is_told_of_to_nobody() {
    let home = Home::new();
    let told = home.path().join("told");
    let body = format!(
        "echo \"$KENNEL_NOTICE_KIND $KENNEL_NOTICE_ID $KENNEL_NOTICE_RUN\" >>{}",
        told.display()
    );
    configure(&home, &command(&script(&home, &body), SOON));
    let run = home.start(&["--", "true"]);
    until("it was told", || (lines(&told).len() >= 2).then_some(()));
    done(&home, "tell");
    let expected = [format!("started {run}/started/1 {run}"), format!("ended {run}/ended/1 {run}")];
    assert_eq!(lines(&told), expected);
    assert_eq!(hooks(&home).len(), 2, "hooks tell of no hooks");
    home.check();
}

#[test]
fn a_program_is_started_once_although_the_daemon_is_killed_or_leaves_while_it_runs() {
    let home = Home::new();
    let (told, go) = (home.path().join("told"), home.path().join("go"));
    let body = format!(
        "echo \"$KENNEL_NOTICE_ID\" >>{}\nuntil [ -e {} ]; do sleep 0.01; done",
        told.display(),
        go.display()
    );
    configure(&home, &command(&script(&home, &body), ENDS));
    let run = home.start(&["--", "true"]);
    until("it was told", || (lines(&told).len() == 1).then_some(()));
    home.kill_daemon();
    home.ok(&["ps"]);
    home.ok(&["down"]);
    home.ok(&["ps"]);
    home.kill_daemon();
    fs::write(&go, "").expect("it can be written");
    home.ok(&["ps"]);
    let known = done(&home, "tell");
    assert_eq!(known["delivered"], 1);
    assert_eq!(lines(&told), [ended(&run)]);
    assert_eq!(hooks(&home).len(), 1);
    home.check();
}

#[test]
fn a_program_that_fails_is_started_again_and_one_that_never_ends_is_ended_by_its_limit() {
    let home = Home::new();
    let tries = home.path().join("tries");
    let body = format!(
        "echo x >>{0}\n[ $(wc -l <{0}) -ge 3 ] && exit 0\ntrap '' TERM\n\
         [ $(wc -l <{0}) -eq 2 ] && while :; do sleep 0.1; done\nexit 9",
        tries.display()
    );
    configure(&home, &command(&script(&home, &body), &format!("wall = \"500ms\"\n{ENDS}")));
    home.start(&["--", "true"]);
    until("it was tried", || (lines(&tries).len() >= 3).then_some(()));
    let known = done(&home, "tell");
    assert_eq!((known["delivered"].as_u64(), known["failed"].as_u64()), (Some(1), Some(2)));
    let mut causes: Vec<String> =
        hooks(&home).iter().map(|run| run["end"]["cause"].as_str().unwrap().to_owned()).collect();
    causes.sort();
    assert_eq!(causes, ["exit", "exit", "limit"]);
    home.check();
}

#[test]
fn the_desktop_is_told_by_its_own_program_and_doctor_says_if_there_is_none() {
    let mut home = Home::new();
    let shown = home.path().join("shown");
    let made = script(&home, &format!("printf '%s|' \"$@\" >>{0}; echo >>{0}", shown.display()));
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("it can be made");
    let path = std::env::var("PATH").unwrap_or_default();
    let text = "[[channel]]\nname = \"desk\"\nkind = \"desktop\"\nfailures_only = true\n";
    configure(&home, &format!("{text}first_pause = \"10ms\"\ntries = 2\n"));
    home.set("PATH", &bin.display().to_string());
    let sh = "/bin/sh";
    let lost = home.start(&["--", sh, "-c", "exit 1"]);
    until("it is given up on", || (channel(&home, "desk")["dead_letters"] == 1).then_some(()));
    let doctor = home.kennel(&["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains("notify-send, which is not"), "{doctor:?}");
    make_program(&made, &bin.join("notify-send"));
    home.kill_daemon();
    home.set("PATH", &format!("{}:{path}", bin.display()));
    home.ok(&["run", "--", "true"]);
    let run = home.start(&["--", "sh", "-c", "exit 7"]);
    home.ok(&["channels", "retry", "desk"]);
    until("it was shown", || (lines(&shown).len() == 2).then_some(()));
    until("nothing is left", || (channel(&home, "desk")["dead_letters"] == 0).then_some(()));
    done(&home, "desk");
    let all = fs::read_to_string(&shown).expect("it is there");
    assert!(all.contains(&format!("{run} ended by itself, exit code 7")), "{all}");
    assert!(all.contains(&format!("{lost} ended by itself, exit code 1")), "{all}");
    assert!(all.contains("kennel: ended"), "{all}");
    assert!(home.kennel(&["doctor"]).out.contains("1 channels deliver"));
    home.check();
}

/// A client that keeps what it was told, and waits if it was told to. Its session goes on.
const SLEEPER: &str = r#"session=none
while [ $# -gt 1 ]; do
    case "$1" in
        --session-id|--resume) session=$2; shift;;
    esac
    shift
done
head="\"type\":\"system\",\"subtype\":\"init\",\"model\":\"claude-sonnet-5\""
echo "{$head,\"session_id\":\"$session\"}"
printf '%s\036' "$session: $1" >>"$HOME/told"
case "$1" in
    wait*) until [ -e "$HOME/${1#wait }" ]; do sleep 0.01; done;;
esac
"#;

/// A home with that client in its path, and a channel that wakes.
fn sleepers(more: &str) -> Home {
    let mut home = Home::new();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("it can be made");
    make_program(&script(&home, SLEEPER), &bin.join("claude"));
    let path = std::env::var("PATH").unwrap_or_default();
    home.set("PATH", &format!("{}:{path}", bin.display()));
    home.set("HOME", &home.path().display().to_string());
    let wake = "[[channel]]\nname = \"wake\"\nkind = \"wake\"\nfirst_pause = \"10ms\"\ntries = 2\n";
    configure(&home, &format!("{wake}{more}"));
    home
}

/// What the client was told, each time.
fn prompts(home: &Home) -> Vec<String> {
    let text = fs::read_to_string(home.path().join("told")).unwrap_or_default();
    text.split_terminator('\u{1e}').map(str::to_owned).collect()
}

/// Makes a run the child of another, as if that one's agent had asked for it.
fn adopt(home: &Home, child: &str, parent: &str) {
    home.sql(&format!(
        "UPDATE run SET request = json_set(request, '$.parent', '{parent}') WHERE id = '{child}'"
    ));
}

fn over(home: &Home, run: &str) -> Value {
    until("the run is over", || Some(home.show(run)).filter(|run| run["state"] == "dead"))
}

fn session(home: &Home, run: &str) -> String {
    over(home, run)["usage"]["session"].as_str().expect("it has one").to_owned()
}

#[test]
fn an_agent_that_left_is_woken_once_with_all_that_ended_meanwhile() {
    let home = sleepers("");
    let parent = home.start(&["--slot", "boss", "--", "claude", "-p", "wait go"]);
    let (one, first) = held_run(&home, "one");
    let (two, second) = held_run(&home, "two");
    adopt(&home, &one, &parent);
    adopt(&home, &two, &parent);
    for file in [&first, &second] {
        fs::write(file, "").expect("it can be written");
    }
    over(&home, &one);
    over(&home, &two);
    until("both wait for it", || (channel(&home, "wake")["pending"] == 2).then_some(()));
    assert_eq!(prompts(&home).len(), 1, "who lives is not woken");
    fs::write(home.path().join("go"), "").expect("it can be written");
    let own = session(&home, &parent);
    let told = until("it was woken", || Some(prompts(&home)).filter(|told| told.len() == 2));
    done(&home, "wake");
    assert!(told[1].starts_with(&format!("{own}: kennel: ")), "in its session: {told:?}");
    for run in [&one, &two] {
        assert!(told[1].contains(&format!("[{}]", ended(run))), "{told:?}");
    }
    let woken: Vec<Value> =
        home.all_runs().into_iter().filter(|run| run["slot"] == "boss").collect();
    assert_eq!(woken.len(), 2, "one run for both");
    let woken = woken.iter().find(|run| run["id"] != *parent).expect("it is there");
    over(&home, woken["id"].as_str().expect("it is text"));
    // Its own end wakes nobody.
    home.ok(&["run", "--", "true"]);
    done(&home, "wake");
    assert_eq!(prompts(&home).len(), 2);
    home.check();
}

#[test]
fn an_agent_is_woken_once_although_the_daemon_is_killed_before_and_after() {
    let home = sleepers("");
    let parent = home.start(&["--", "claude", "-p", "go"]);
    over(&home, &parent);
    let (child, file) = held_run(&home, "child");
    adopt(&home, &child, &parent);
    home.kill_daemon();
    fs::write(file, "").expect("it can be written");
    home.ok(&["ps"]);
    until("it was woken", || (prompts(&home).len() == 2).then_some(()));
    home.kill_daemon();
    home.ok(&["ps"]);
    done(&home, "wake");
    home.kill_daemon();
    home.ok(&["run", "--", "true"]);
    done(&home, "wake");
    let told = prompts(&home);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(home.all_runs().len(), 4, "parent, child, the one woken, and another");
    home.check();
}

#[test]
fn nobody_is_woken_who_knows_already_was_stopped_or_cannot_be() {
    let home = sleepers("");
    // It has read of it itself.
    let knows = home.start(&["--", "claude", "-p", "go"]);
    over(&home, &knows);
    let (one, file) = held_run(&home, "one");
    let last = home.json(&["notices"])["seq"].as_u64().expect("it is a number");
    let consumer = format!("/v1/consumers/run:{knows}/ack");
    home.ask("POST", &consumer, &format!("{{\"seq\":{last}}}"));
    home.sql(&format!("UPDATE consumer SET acked = 1000000 WHERE name = 'run:{knows}'"));
    adopt(&home, &one, &knows);
    fs::write(file, "").expect("it can be written");
    over(&home, &one);
    // Somebody stopped it.
    let stopped = home.start(&["--", "claude", "-p", "wait never"]);
    let (two, file) = held_run(&home, "two");
    adopt(&home, &two, &stopped);
    home.ok(&["kill", &stopped]);
    fs::write(file, "").expect("it can be written");
    over(&home, &two);
    // It has no session that anybody knows.
    let nameless = home.start(&["--", "true"]);
    over(&home, &nameless);
    let (three, file) = held_run(&home, "three");
    adopt(&home, &three, &nameless);
    fs::write(file, "").expect("it can be written");
    until("it is given up on", || (channel(&home, "wake")["dead_letters"] == 1).then_some(()));
    let known = done(&home, "wake");
    assert_eq!(known["letters"][0]["notice"], ended(&three));
    let error = known["letters"][0]["error"].as_str().expect("it is text");
    assert!(error.contains("session") && error.contains(&nameless), "{error}");
    assert_eq!(prompts(&home).len(), 2, "{:?}", prompts(&home));
    home.check();
}

#[test]
fn an_agent_with_a_profile_is_woken_by_it_and_others_are_not() {
    let agent = "agent = \"boss\"\n[[agent]]\nname = \"boss\"\nkind = \"claude\"\nmodel = \"m1\"\n";
    let home = sleepers(agent);
    let other = home.start(&["--", "claude", "-p", "go"]);
    over(&home, &other);
    let boss = home.ok(&["run", "-d", "--agent", "boss", "--", "begin"]);
    let own = session(&home, &boss);
    for parent in [&other, &boss] {
        let (child, file) = held_run(&home, parent);
        adopt(&home, &child, parent);
        fs::write(file, "").expect("it can be written");
        over(&home, &child);
    }
    let told = until("it was woken", || Some(prompts(&home)).filter(|told| told.len() == 3));
    done(&home, "wake");
    assert!(told[2].starts_with(&format!("{own}: kennel: ")), "{told:?}");
    let woken =
        home.all_runs().into_iter().find(|run| run["agent"] == "boss" && run["id"] != *boss);
    let words = woken.expect("it is there")["command"].to_string();
    assert!(words.contains("m1") && words.contains("--resume"), "{words}");
    assert_eq!(prompts(&home).len(), 3);
    home.check();
}

#[test]
fn what_was_decided_before_a_crash_is_done_and_what_was_done_is_not_done_again() {
    let home = sleepers("");
    let parent = home.start(&["--slot", "boss", "--", "claude", "-p", "wait go"]);
    let (one, file) = held_run(&home, "one");
    adopt(&home, &one, &parent);
    fs::write(file, "").expect("it can be written");
    over(&home, &one);
    until("it waits", || (channel(&home, "wake")["pending"] == 1).then_some(()));
    home.kill_daemon();
    // As a daemon leaves it that was killed after it decided and before it asked for the run.
    let seq = home.sql(&format!("SELECT seq FROM journal WHERE notice = '{}'", ended(&one)));
    home.sql(&format!("INSERT INTO wake VALUES ('wake', {seq}, 'decided', 0)"));
    home.ok(&["ps"]);
    let (two, file) = held_run(&home, "two");
    adopt(&home, &two, &parent);
    fs::write(file, "").expect("it can be written");
    over(&home, &two);
    fs::write(home.path().join("go"), "").expect("it can be written");
    let told = until("both were told", || Some(prompts(&home)).filter(|told| told.len() == 3));
    done(&home, "wake");
    assert_eq!(home.show("decided")["slot"], "boss");
    for run in [&one, &two] {
        let of = |prompt: &&String| prompt.contains(&format!("[{}]", ended(run)));
        assert_eq!(told.iter().filter(of).count(), 1, "{told:?}");
    }
    let mut slot = home.all_runs();
    slot.retain(|run| run["slot"] == "boss");
    slot.iter().for_each(|run| drop(over(&home, run["id"].as_str().expect("it is text"))));
    home.kill_daemon();
    // As one leaves it that was killed after it asked and before it kept that.
    home.sql("UPDATE wake SET settled = 0");
    home.ok(&["run", "--", "true"]);
    until("it is settled again", || {
        (home.sql("SELECT count(*) FROM wake WHERE settled = 0") == "0").then_some(())
    });
    assert_eq!(prompts(&home).len(), 3);
    home.check();
}

#[test]
fn a_wake_that_failed_is_kept_and_done_when_it_is_asked_for_again() {
    let home = sleepers("");
    let parent = home.start(&["--", "claude", "-p", "go"]);
    over(&home, &parent);
    let (program, away) = (home.path().join("bin/claude"), home.path().join("away"));
    fs::rename(&program, &away).expect("it can be moved");
    let (child, file) = held_run(&home, "child");
    adopt(&home, &child, &parent);
    fs::write(file, "").expect("it can be written");
    until("it is given up on", || (channel(&home, "wake")["dead_letters"] == 1).then_some(()));
    assert_eq!(channel(&home, "wake")["letters"][0]["tries"], 2);
    fs::rename(&away, &program).expect("it can be moved");
    home.kill_daemon();
    home.ok(&["channels", "retry", "wake"]);
    until("it was woken", || (prompts(&home).len() == 2).then_some(()));
    until("nothing is left", || (channel(&home, "wake")["dead_letters"] == 0).then_some(()));
    assert!(prompts(&home)[1].contains(&ended(&child)));
    home.check();
}
