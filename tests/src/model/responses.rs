//! The Responses API of OpenAI, as Codex uses it: an answer in events.

use std::io;

use serde_json::{Value, json};

use super::http::Reply;
use super::script::{Answer, Ask, Step, Tokens};
use super::{Line, Shared, error, text_of};

/// The tools of one response are in the conversation one by one.
const CALLS: [&str; 3] = ["function_call", "local_shell_call", "custom_tool_call"];

/// Answers one request.
pub(super) fn answer(shared: &Shared, reply: &mut Reply, request: &Value) -> io::Result<()> {
    let model = request["model"].as_str().unwrap_or_default();
    let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let headers = vec![("x-request-id".to_owned(), shared.name("req"))];
    let mut response = json!({
        "id": shared.name("resp"), "object": "response", "created_at": 0,
        "status": "in_progress", "model": model, "output": [], "usage": null,
    });
    match shared.step_for(&lines(&request["input"]), model, has_tools) {
        Step::Refuse(refusal) => {
            let headers = [headers, refusal.headers].concat();
            reply.json(refusal.status, &headers, &error(refusal.kind))
        }
        Step::Hang => {
            reply.events(&headers)?;
            reply.event(&json!({"type": "response.created", "response": response}))?;
            shared.hang();
            Ok(())
        }
        Step::Answer(answer) => {
            reply.events(&[headers, answer.headers.clone()].concat())?;
            reply.event(&json!({"type": "response.created", "response": response}))?;
            let items = items(shared, &answer, &started_tasks(&request["input"]));
            for (index, item) in items.iter().enumerate() {
                tell_item(reply, index, item)?;
            }
            response["status"] = "completed".into();
            response["output"] = Value::Array(items);
            response["usage"] = usage(&answer.tokens);
            reply.event(&json!({"type": "response.completed", "response": response}))
        }
    }
}

fn lines(input: &Value) -> Vec<Line> {
    if let Value::String(text) = input {
        return vec![Line::Told(text.clone())];
    }
    let mut lines = Vec::new();
    // The calls of a response belong to the message before them, if there is one.
    let mut answering = false;
    for item in input.as_array().into_iter().flatten() {
        let kind = item["type"].as_str().unwrap_or("message");
        let is_answer = CALLS.contains(&kind) || item["role"] == "assistant";
        if is_answer && !answering {
            lines.push(Line::Answered);
        } else if item["role"] == "user" {
            lines.push(Line::Told(text_of(&item["content"])));
        } else {
            lines.push(Line::Other);
        }
        answering = is_answer;
    }
    lines
}

/// What is cached is part of the input here.
fn usage(tokens: &Tokens) -> Value {
    let input = tokens.input + tokens.cache_read;
    json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": tokens.output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + tokens.output,
    })
}

/// The sub-agents whose names are in the results of tools.
fn started_tasks(input: &Value) -> Vec<String> {
    let items = input.as_array().into_iter().flatten();
    let results = items.filter(|item| item["type"] == "function_call_output");
    let told = results.map(|item| text_of(&item["output"]));
    let tasks = told.filter_map(|text| {
        let result: Value = serde_json::from_str(&text).ok()?;
        result["agent_id"].as_str().map(str::to_owned)
    });
    tasks.collect()
}

fn items(shared: &Shared, answer: &Answer, tasks: &[String]) -> Vec<Value> {
    let mut items = Vec::new();
    if !answer.text.is_empty() {
        let content = json!([{"type": "output_text", "text": answer.text, "annotations": []}]);
        items.push(json!({
            "id": shared.name("msg"), "type": "message", "role": "assistant",
            "status": "completed", "content": content,
        }));
    }
    for ask in &answer.asks {
        let mcp;
        let (name, arguments) = match ask {
            Ask::Shell(command) => {
                ("exec_command", json!({"cmd": command, "yield_time_ms": 600_000}))
            }
            // It goes on when the time to wait for it is over.
            Ask::Background(command) => {
                ("exec_command", json!({"cmd": command, "yield_time_ms": 250}))
            }
            Ask::Mcp(_, tool, input) => {
                mcp = (*tool).to_owned();
                (mcp.as_str(), serde_json::from_str(input).unwrap_or_default())
            }
            Ask::Task(prompt) => ("spawn_agent", json!({"message": prompt})),
            Ask::WaitForTasks => ("wait_agent", json!({"targets": tasks, "timeout_ms": 60_000})),
        };
        let mut item = json!({
            "id": shared.name("fc"), "type": "function_call", "status": "completed",
            "call_id": shared.name("call"), "name": name, "arguments": arguments.to_string(),
        });
        if name.ends_with("_agent") {
            item["namespace"] = "multi_agent_v1".into();
        }
        if let Ask::Mcp(server, ..) = ask {
            item["namespace"] = format!("mcp__{server}").into();
        }
        items.push(item);
    }
    items
}

fn tell_item(reply: &mut Reply, index: usize, item: &Value) -> io::Result<()> {
    let id = &item["id"];
    let mut tell = |kind: &str, rest: Value| {
        let mut event = json!({"type": kind, "output_index": index});
        if let (Value::Object(event), Value::Object(rest)) = (&mut event, rest) {
            event.extend(rest);
        }
        reply.event(&event)
    };
    let mut begun = item.clone();
    if item["type"] == "message" {
        begun["content"] = json!([]);
    }
    tell("response.output_item.added", json!({"item": begun}))?;
    if item["type"] == "message" {
        let text = &item["content"][0]["text"];
        let delta = json!({"item_id": id, "content_index": 0, "delta": text});
        tell("response.output_text.delta", delta)?;
    } else {
        let delta = json!({"item_id": id, "delta": item["arguments"]});
        tell("response.function_call_arguments.delta", delta)?;
    }
    tell("response.output_item.done", json!({"item": item}))
}
