//! What entries add up to: each response once, the better number, no total twice.

use kennel_transcript::{
    CostBasis, Ending, Entry, Format, Grade, History, Prices, Reader, Source, Span, Standing,
    Tally, Tokens, Total, Turn, TurnId, Usage, Used,
};

const OUT: Source = Source::Stdout;
const FILE: Source = Source::File { subagent: false };
const CHILD: Source = Source::File { subagent: true };

fn tally(history: History) -> Tally {
    Tally::new(Prices::shipped(), history)
}

fn read(tally: &mut Tally, format: Format, source: Source, text: &str) {
    let mut reader = Reader::new(format, source);
    reader.feed(text.as_bytes(), &mut |entry| tally.add(source, &entry));
    reader.finish(&mut |entry| tally.add(source, &entry));
}

fn used_by(format: Format, source: Source, text: &str) -> Used {
    let mut tally = tally(History::Fresh);
    read(&mut tally, format, source, text);
    tally.used()
}

/// A line that was written over several, to fit the page.
fn one_line(text: String) -> String {
    text.lines().map(str::trim_start).collect()
}

fn turn(id: &str, subagent: bool, tools: u64) -> Entry {
    Entry::Turn(Turn { id: TurnId::Shared(id.to_owned()), subagent, tools })
}

/// A usage of claude-sonnet-5 with only output, at 10 dollars per million.
fn output(id: &str, request: Option<&str>, grade: Grade, output: u64) -> Entry {
    Entry::Usage(Usage {
        id: Some(id.to_owned()),
        request: request.map(str::to_owned),
        model: Some("claude-sonnet-5".to_owned()),
        grade,
        subagent: false,
        tokens: Tokens { output, ..Tokens::default() },
        usd: None,
    })
}

fn total(usd: f64) -> Entry {
    Entry::Total(Total { since: Span::Session, tokens: None, usd: Some(usd) })
}

#[test]
fn narration_does_not_count_as_tool_use() {
    let mut tally = tally(History::Fresh);
    for n in 0..30 {
        tally.add(OUT, &turn(&format!("text{n}"), false, 0));
    }
    for n in 0..5 {
        tally.add(OUT, &turn(&format!("tool{n}"), false, 2));
    }
    let used = tally.used();
    assert_eq!((used.turns, used.tool_turns), (35, 5));
}

#[test]
fn what_is_told_twice_counts_once() {
    let text = include_str!("samples/claude-2.1.325-transcript-on-disk.jsonl");
    let doubled: String = text.lines().flat_map(|line| [line, "\n", line, "\n"]).collect();
    let (once, twice) =
        (used_by(Format::Claude, FILE, text), used_by(Format::Claude, FILE, &doubled));
    assert_eq!((once.turns, once.tool_turns, once.tool_calls, once.tokens, once.usd), {
        (twice.turns, twice.tool_turns, twice.tool_calls, twice.tokens, twice.usd)
    });
    // Read again from the start, as after a file was replaced.
    let mut tally = tally(History::Fresh);
    read(&mut tally, Format::Claude, FILE, text);
    read(&mut tally, Format::Claude, FILE, text);
    assert_eq!((tally.used().turns, tally.used().usd), (3, 0.002_175));
}

#[test]
fn the_order_of_lines_does_not_matter_for_what_was_used() {
    let reversed = |text: &str| text.lines().rev().collect::<Vec<&str>>().join("\n");
    let disk = include_str!("samples/claude-2.1.325-transcript-on-disk.jsonl");
    let used = used_by(Format::Claude, FILE, &reversed(disk));
    assert_eq!((used.turns, used.tool_turns, used.tool_calls, used.open_tools), (3, 2, 3, 0));
    assert_eq!((used.tokens.output, used.usd), (60, 0.002_175));
    // On standard output what comes after a total was used after it: too much at worst.
    let out = include_str!("samples/claude-2.1.325-ok.jsonl");
    let used = used_by(Format::Claude, OUT, &reversed(out));
    assert_eq!((used.turns, used.tool_turns, used.tool_calls, used.open_tools), (3, 2, 3, 0));
    // 2175, and three placeholders of 535.
    assert_eq!(used.usd, 0.003_78);
}

#[test]
fn a_placeholder_gives_way_and_more_output_wins() {
    let mut tally = tally(History::Fresh);
    let steps = [
        (Grade::Placeholder, 1, 1),
        // A snapshot the client wrote too early, and then the whole.
        (Grade::Recorded, 5, 5),
        (Grade::Recorded, 100, 100),
        (Grade::Recorded, 7, 100),
        (Grade::Placeholder, 900, 100),
        (Grade::Streamed, 900, 100),
    ];
    for (grade, tokens, expected) in steps {
        tally.add(OUT, &output("m", Some("r"), grade, tokens));
        assert_eq!(tally.used().tokens.output, expected, "{grade:?} {tokens}");
    }
    assert_eq!((tally.used().usd, tally.used().unconfirmed), (0.001, 0));
}

#[test]
fn a_response_is_known_with_and_without_its_request() {
    // Whoever tells no request means the response that has the id, in either order.
    for (first, second) in [(Some("r"), None), (None, Some("r"))] {
        let mut tally = tally(History::Fresh);
        tally.add(OUT, &output("m", first, Grade::Placeholder, 1));
        tally.add(OUT, &output("m", second, Grade::Streamed, 10));
        tally.add(FILE, &output("m", Some("r"), Grade::Recorded, 10));
        assert_eq!(tally.used().tokens.output, 10, "{first:?} {second:?}");
    }
    // A gateway that gives every response the same id: requests tell them apart.
    let mut tally = tally(History::Fresh);
    for request in ["r1", "r2", "r2"] {
        tally.add(FILE, &output("m", Some(request), Grade::Recorded, 10));
    }
    assert_eq!(tally.used().tokens.output, 20);
}

#[test]
fn sub_agents_count_and_are_shown_apart() {
    let line = |id: &str, parent: &str, tool: &str| {
        one_line(format!(
            r#"{{"type":"assistant","message":{{"id":"{id}","model":"claude-sonnet-5",
            "content":[{{"type":"{tool}","id":"t{id}","name":"Bash"}}],"usage":
            {{"input_tokens":100,"output_tokens":1}}}},"parent_tool_use_id":{parent},
            "session_id":"S"}}"#
        ))
    };
    let recorded = |id: &str, sidechain: bool| {
        one_line(format!(
            r#"{{"isSidechain":{sidechain},"message":{{"id":"{id}","model":"claude-sonnet-5",
            "content":[{{"type":"text"}}],"usage":{{"input_tokens":100,"output_tokens":20}}}},
            "type":"assistant","sessionId":"S"}}"#
        ))
    };
    let mut tally = tally(History::Fresh);
    let lines = [line("main", "null", "tool_use"), line("child", "\"tmain\"", "tool_use")];
    read(&mut tally, Format::Claude, OUT, &lines.join("\n"));
    read(&mut tally, Format::Claude, FILE, &recorded("main", false));
    // In its own file: the one that was shown, one that was not, and a replay of the main loop's.
    let lines = [recorded("child", true), recorded("hidden", true), recorded("main", true)];
    read(&mut tally, Format::Claude, CHILD, &lines.join("\n"));
    let used = tally.used();
    assert_eq!((used.turns, used.subagent_turns), (3, 2));
    assert_eq!((used.tool_turns, used.subagent_tool_turns), (2, 1));
    assert_eq!((used.tokens.input, used.tokens.output), (300, 60));
    assert_eq!(used.session.as_deref(), Some("S"));
}

#[test]
fn the_session_of_a_sub_agent_is_not_the_runs() {
    let mut tally = tally(History::Fresh);
    tally.add(OUT, &Entry::Session("root".to_owned()));
    tally.add(CHILD, &Entry::Session("child".to_owned()));
    assert_eq!(tally.used().session.as_deref(), Some("root"));
}

#[test]
fn a_total_of_a_resumed_session_is_charged_only_for_what_this_run_added() {
    // 0.5 dollars were spent before; this run's response costs 100000 * 10 / 10^6 = 1.
    let mut resumed = tally(History::Resumed);
    resumed.add(OUT, &output("m1", None, Grade::Streamed, 100_000));
    resumed.add(OUT, &total(1.5));
    assert_eq!(resumed.used().usd, 1.0);
    // The next total is 0.7 more: 1 + 0.7.
    resumed.add(OUT, &total(2.2));
    assert!((resumed.used().usd - 1.7).abs() < 1e-9);
    assert_eq!(resumed.used().basis, CostBasis::Said);
    // With the transcript, every response is known and the total says nothing.
    resumed.add(FILE, &output("m1", Some("r1"), Grade::Recorded, 100_000));
    assert_eq!(resumed.used().usd, 1.0);
    assert!(matches!(resumed.used().basis, CostBasis::Priced { .. }));
    // In a fresh run it is all this run's, the last one wins, and none is added to another.
    let mut fresh = tally(History::Fresh);
    for usd in [1.0, 1.5, 2.2] {
        fresh.add(OUT, &total(usd));
    }
    assert_eq!(fresh.used().usd, 2.2);
}

#[test]
fn what_comes_after_a_total_is_added_to_it_where_there_is_nothing_else() {
    let mut tally = tally(History::Fresh);
    tally.add(OUT, &output("m1", None, Grade::Placeholder, 1));
    tally.add(OUT, &total(0.5));
    assert_eq!((tally.used().usd, tally.used().unconfirmed), (0.5, 0));
    tally.add(OUT, &output("m2", None, Grade::Streamed, 10_000));
    assert_eq!(tally.used().usd, 0.6);
    tally.add(OUT, &total(0.61));
    assert_eq!(tally.used().usd, 0.61);
}

#[test]
fn a_total_that_may_be_another_runs_is_not_charged() {
    // Goose tells tokens once, at the end, for the whole session.
    let text = include_str!("samples/goose-1.52.0-ok.jsonl");
    let mut tally = tally(History::Resumed);
    read(&mut tally, Format::Goose, OUT, text);
    let used = tally.used();
    assert_eq!((used.turns, used.usd, used.basis), (3, 0.0, CostBasis::Unknown));
}

#[test]
fn an_unknown_model_is_named_with_the_price_of_the_dearest() {
    let mut tally = tally(History::Fresh);
    tally.add(OUT, &output("m1", None, Grade::Streamed, 10_000));
    let Entry::Usage(mut usage) = output("m2", None, Grade::Streamed, 10_000) else {
        unreachable!("it is one");
    };
    usage.model = Some("claude-next".to_owned());
    tally.add(OUT, &Entry::Usage(usage));
    let used = tally.used();
    // 10000 * 10 and 10000 * 50 per million.
    assert_eq!(used.usd, 0.6);
    let CostBasis::Dearest { model, date } = used.basis else { panic!("{:?}", used.basis) };
    assert_eq!((model.as_str(), date.as_str()), ("claude-next", "2026-11-15"));
    let rows: Vec<(&str, f64, bool)> =
        used.models.iter().map(|row| (row.model.as_str(), row.usd, row.known)).collect();
    assert_eq!(rows, [("claude-sonnet-5", 0.1, true), ("claude-next", 0.5, false)]);
}

#[test]
fn a_file_that_trails_does_not_bring_back_what_is_over() {
    let mut tally = tally(History::Fresh);
    let out = include_str!("samples/claude-2.1.325-ok.jsonl");
    let disk = include_str!("samples/claude-2.1.325-transcript-on-disk.jsonl");
    read(&mut tally, Format::Claude, OUT, out);
    assert_eq!(tally.used().standing, Standing::Finishing);
    for line in disk.lines() {
        read(&mut tally, Format::Claude, FILE, line);
        assert_eq!((tally.used().standing, tally.used().open_tools), (Standing::Finishing, 0));
    }
    // A response that is new means that the agent works on.
    tally.add(FILE, &turn("later", false, 0));
    assert_eq!(tally.used().standing, Standing::Working);
}

#[test]
fn the_end_of_a_prompt_in_a_file_ends_nothing_that_standard_output_goes_on_with() {
    let done = Entry::Result(Ending { is_error: false, subtype: "completed".to_owned() });
    let mut both = tally(History::Fresh);
    both.add(OUT, &Entry::Working);
    both.add(FILE, &done);
    assert_eq!((both.used().standing, both.used().ending), (Standing::Working, None));
    let mut file_only = tally(History::Fresh);
    file_only.add(OUT, &Entry::Plain);
    file_only.add(FILE, &done);
    assert_eq!(file_only.used().standing, Standing::Finishing);
}

#[test]
fn tools_of_codex_make_tool_using_turns() {
    let record = |thread: &str, response: &str| {
        one_line(format!(
            r#"{{"type":"token_usage_record","payload":{{"thread_id":"{thread}",
            "response_id":"{response}","usage":{{"input_tokens":1100,"cached_input_tokens":1000,
            "output_tokens":20}}}}}}"#
        ))
    };
    let call = r#"{"type":"response_item","payload":{"type":"function_call","call_id":"c"}}"#;
    let meta = |id: &str, parent: &str| {
        format!(
            r#"{{"type":"session_meta","payload":{{"id":"{id}","parent_thread_id":{parent}}}}}"#
        )
    };
    let model = r#"{"type":"turn_context","payload":{"model":"gpt-5.2-codex"}}"#;
    let root = [
        meta("root", "null"),
        model.to_owned(),
        call.to_owned(),
        record("root", "r1"),
        call.to_owned(),
        call.to_owned(),
        record("root", "r2"),
        record("root", "r3"),
    ];
    let mut tally = tally(History::Fresh);
    read(&mut tally, Format::Codex, FILE, &root.join("\n"));
    assert_eq!((tally.used().turns, tally.used().tool_turns), (3, 2));
    // The child's file begins with its own header and a replay of its parent's.
    let child = [
        meta("child", "\"root\""),
        meta("root", "null"),
        record("root", "r1"),
        call.to_owned(),
        record("child", "c1"),
    ];
    read(&mut tally, Format::Codex, CHILD, &child.join("\n"));
    let used = tally.used();
    assert_eq!((used.turns, used.subagent_turns, used.subagent_tool_turns), (4, 1, 1));
    assert_eq!(used.session.as_deref(), Some("root"));
}

#[test]
fn older_rollouts_are_counted_by_their_counts() {
    let count = |total: u64| {
        one_line(format!(
            r#"{{"type":"event_msg","payload":{{"type":"token_count","info":{{"total_token_usage":
            {{"input_tokens":{total},"output_tokens":20}},"last_token_usage":
            {{"input_tokens":100,"output_tokens":20}}}}}}}}"#
        ))
    };
    let empty = r#"{"type":"event_msg","payload":{"type":"token_count","info":null}}"#;
    let lines = [empty.to_owned(), count(100), count(100), count(200)];
    let used = used_by(Format::Codex, FILE, &lines.join("\n"));
    assert_eq!((used.turns, used.tokens.input, used.tokens.output), (2, 200, 40));
}

#[test]
fn a_fork_is_not_charged_what_it_copied() {
    let text = include_str!("samples/claude-2.1.325-transcript-on-disk.jsonl");
    let mut tally = tally(History::Resumed);
    // Between the second and the third response: 2026-11-15T19:24:20.000Z.
    let mut reader = Reader::new(Format::Claude, FILE).since(1_794_770_660_000);
    reader.feed(text.as_bytes(), &mut |entry| tally.add(FILE, &entry));
    let used = tally.used();
    assert_eq!((used.turns, used.tool_turns, used.usd), (1, 0, 0.000_725));
}

#[test]
fn amp_and_cursor_are_counted_as_documented() {
    let amp = [
        r#"{"type":"system","subtype":"init","session_id":"T-1"}"#,
        concat!(
            r#"{"type":"assistant","session_id":"T-1","parent_tool_use_id":null,"message":"#,
            r#"{"type":"message","role":"assistant","content":[{"type":"tool_use","id":"t1","#,
            r#""name":"Bash"}],"usage":{"input_tokens":100,"output_tokens":20,"#,
            r#""cache_read_input_tokens":1000}}}"#,
        ),
        concat!(
            r#"{"type":"user","session_id":"T-1","message":{"role":"user","#,
            r#""content":[{"type":"tool_result","tool_use_id":"t1"}]}}"#,
        ),
        concat!(
            r#"{"type":"assistant","session_id":"T-1","message":{"content":[{"type":"text"}],"#,
            r#""usage":{"input_tokens":100,"output_tokens":20}}}"#,
        ),
        r#"{"type":"result","subtype":"success","is_error":false,"session_id":"T-1"}"#,
    ];
    let used = used_by(Format::Amp, OUT, &amp.join("\n"));
    assert_eq!((used.turns, used.tool_turns, used.tool_calls, used.open_tools), (2, 1, 1, 0));
    assert_eq!((used.tokens.input, used.tokens.output, used.tokens.cache_read), (200, 40, 1000));
    let cursor = [
        r#"{"type":"system","subtype":"init","session_id":"C","model":"Auto"}"#,
        r#"{"type":"user","message":{"role":"user"},"session_id":"C"}"#,
        r#"{"type":"assistant","message":{"role":"assistant"},"session_id":"C"}"#,
        concat!(
            r#"{"type":"tool_call","subtype":"started","call_id":"c1","tool_call":"#,
            r#"{"shellToolCall":{}},"session_id":"C"}"#,
        ),
        concat!(
            r#"{"type":"tool_call","subtype":"completed","call_id":"c1","tool_call":{},"#,
            r#""session_id":"C"}"#,
        ),
        r#"{"type":"assistant","message":{"role":"assistant"},"session_id":"C"}"#,
        r#"{"type":"result","subtype":"success","is_error":false,"session_id":"C"}"#,
    ];
    let used = used_by(Format::Cursor, OUT, &cursor.join("\n"));
    assert_eq!((used.turns, used.tool_turns, used.tool_calls, used.open_tools), (2, 1, 1, 0));
    assert_eq!((used.unknown, used.basis), (0, CostBasis::Unknown));
}

#[test]
fn a_tally_forgets_and_never_counts_less_for_it() {
    let mut tally = tally(History::Fresh);
    for n in 0..20_000_u64 {
        let id = format!("m{n}");
        tally.add(OUT, &turn(&id, false, 1));
        tally.add(OUT, &Entry::ToolStarted { id: id.clone(), name: String::new() });
        tally.add(OUT, &output(&id, None, Grade::Placeholder, 1));
        tally.add(FILE, &turn(&id, false, 1));
        tally.add(FILE, &output(&id, None, Grade::Recorded, 10));
    }
    let used = tally.used();
    assert_eq!((used.turns, used.tool_turns, used.tool_calls), (20_000, 20_000, 20_000));
    assert_eq!((used.tokens.output, used.unconfirmed), (200_000, 0));
    assert!(used.open_tools <= 20_000);
}

#[test]
fn a_file_that_trails_does_not_take_back_the_final_answer() {
    let own = |place| Entry::Turn(Turn { id: TurnId::Own(place), subagent: false, tools: 0 });
    let ending = || Entry::Result(Ending { is_error: false, subtype: "success".to_owned() });
    let mut both = tally(History::Fresh);
    both.add(OUT, &own(1));
    both.add(OUT, &ending());
    for late in [own(1), Entry::Working] {
        both.add(FILE, &late);
        assert_eq!(both.used().standing, Standing::Finishing, "{late:?}");
    }
    both.add(OUT, &own(2));
    assert_eq!(both.used().standing, Standing::Working);

    // Codex says when a prompt is done, and its responses are in the file alone.
    let mut file_alone = tally(History::Fresh);
    file_alone.add(OUT, &Entry::Working);
    file_alone.add(FILE, &turn("m1", false, 1));
    file_alone.add(OUT, &ending());
    file_alone.add(FILE, &turn("m2", false, 0));
    assert_eq!(file_alone.used().standing, Standing::Finishing);
    assert_eq!(file_alone.used().turns, 2);
    file_alone.add(OUT, &Entry::Working);
    assert_eq!(file_alone.used().standing, Standing::Working);
}

#[test]
fn a_response_that_was_cut_off_is_not_confirmed_by_a_total() {
    let mut tally = tally(History::Fresh);
    tally.add(OUT, &output("m1", Some("r1"), Grade::Placeholder, 1));
    assert_eq!(tally.used().unconfirmed, 1);
    tally.add(FILE, &output("m1", Some("r1"), Grade::Cut, 1));
    assert_eq!(tally.used().unconfirmed, 1);
    tally.add(OUT, &total(0.5));
    assert_eq!(tally.used().unconfirmed, 1, "the total knows no more than we do");
    tally.add(OUT, &output("m2", Some("r2"), Grade::Placeholder, 1));
    tally.add(OUT, &total(0.6));
    assert_eq!(tally.used().unconfirmed, 1, "that one was not cut off");
    tally.add(FILE, &output("m1", Some("r1"), Grade::Recorded, 10));
    assert_eq!(tally.used().unconfirmed, 0, "it was written to its end after all");
}

#[test]
fn a_total_that_says_less_than_was_counted_confirms_nothing() {
    let told = |output| {
        let tokens = Some(Tokens { output, ..Tokens::default() });
        Entry::Total(Total { since: Span::Session, tokens, usd: Some(1.0) })
    };
    let mut tally = tally(History::Fresh);
    tally.add(FILE, &output("m1", Some("r1"), Grade::Recorded, 500));
    tally.add(OUT, &output("m2", Some("r2"), Grade::Placeholder, 1));
    // What the client writes as it is ended, and its second response is nowhere on disk.
    tally.add(FILE, &told(500));
    assert_eq!(tally.used().unconfirmed, 1, "it has not the second one");
    tally.add(FILE, &output("m2", Some("r2"), Grade::Recorded, 500));
    assert_eq!(tally.used().unconfirmed, 0, "it was written to its end after all");
    tally.add(OUT, &output("m3", Some("r3"), Grade::Placeholder, 1));
    tally.add(OUT, &told(1_500));
    assert_eq!((tally.used().unconfirmed, tally.used().tokens.output), (0, 1_500));
    tally.add(FILE, &output("m3", Some("r3"), Grade::Recorded, 500));
    assert_eq!((tally.used().unconfirmed, tally.used().tokens.output), (0, 1_500));
}

#[test]
fn totals_of_a_resumed_session_confirm_nothing() {
    let mut tally = tally(History::Resumed);
    tally.add(OUT, &output("m1", None, Grade::Placeholder, 1));
    for usd in [3.0, 4.0] {
        tally.add(OUT, &total(usd));
        assert_eq!(tally.used().unconfirmed, 1, "how much of it is ours is a guess");
    }
}
