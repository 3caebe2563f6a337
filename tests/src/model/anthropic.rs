//! The Messages API of Anthropic, as Claude Code uses it: an answer in events, or at once.

use std::io;

use serde_json::{Value, json};

use super::http::Reply;
use super::script::{Answer, Ask, Step, Tokens};
use super::{Line, Shared, error, text_of, tool_named};

/// Answers one request.
pub(super) fn answer(shared: &Shared, reply: &mut Reply, request: &Value) -> io::Result<()> {
    let model = request["model"].as_str().unwrap_or_default();
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let offered: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let headers = vec![("request-id".to_owned(), shared.name("req"))];
    match shared.step_for(&lines(&request["messages"]), model, !offered.is_empty()) {
        Step::Refuse(refusal) => {
            let headers = [headers, refusal.headers].concat();
            reply.json(refusal.status, &headers, &error(refusal.kind))
        }
        Step::Hang => {
            reply.events(&headers)?;
            reply.event(&start_of(&message(shared, model, &Tokens::default())))?;
            shared.hang();
            Ok(())
        }
        Step::Answer(answer) => {
            let headers = [headers, answer.headers.clone()].concat();
            let blocks = blocks(shared, &answer, &offered);
            let mut message = message(shared, model, &answer.tokens);
            if request["stream"] == true {
                reply.events(&headers)?;
                return stream(reply, &message, &blocks, &answer);
            }
            message["content"] = Value::Array(blocks);
            message["stop_reason"] = stop_reason(&answer).into();
            message["usage"] = usage(&answer.tokens);
            reply.json(200, &headers, &message)
        }
    }
}

fn lines(messages: &Value) -> Vec<Line> {
    let messages = messages.as_array().into_iter().flatten();
    messages
        .map(|message| match message["role"].as_str() {
            Some("user") => Line::Told(text_of(&message["content"])),
            Some("assistant") => Line::Answered,
            _ => Line::Other,
        })
        .collect()
}

/// A message as it begins: the output is a placeholder then.
fn message(shared: &Shared, model: &str, tokens: &Tokens) -> Value {
    let mut usage = usage(tokens);
    usage["output_tokens"] = 1.into();
    json!({
        "id": shared.name("msg"), "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
    })
}

fn usage(tokens: &Tokens) -> Value {
    let written = tokens.cache_write_5m + tokens.cache_write_1h;
    json!({
        "input_tokens": tokens.input, "output_tokens": tokens.output,
        "cache_read_input_tokens": tokens.cache_read, "cache_creation_input_tokens": written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write_5m,
            "ephemeral_1h_input_tokens": tokens.cache_write_1h,
        },
        "service_tier": "standard",
    })
}

fn stop_reason(answer: &Answer) -> &'static str {
    if answer.asks.is_empty() { "end_turn" } else { "tool_use" }
}

fn blocks(shared: &Shared, answer: &Answer, offered: &[&str]) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !answer.text.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.text}));
    }
    for ask in &answer.asks {
        let about = "a step of the script";
        let mcp;
        let (tool, input) = match ask {
            Ask::Shell(command) => {
                let input = json!({"command": command, "description": about, "timeout": 600_000});
                ("Bash", input)
            }
            Ask::Background(command) => {
                let input = json!({
                    "command": command, "description": about, "run_in_background": true,
                });
                ("Bash", input)
            }
            Ask::Mcp(server, tool, input) => {
                mcp = format!("mcp__{server}__{tool}");
                (mcp.as_str(), serde_json::from_str(input).unwrap_or_default())
            }
            Ask::Task(prompt) => {
                let input = json!({
                    "prompt": prompt, "description": about, "subagent_type": "general-purpose",
                });
                (tool_named(offered, &["Agent", "Task"]).unwrap_or("Task"), input)
            }
            // This client waits for them by itself.
            Ask::WaitForTasks => continue,
        };
        let id = shared.name("toolu");
        blocks.push(json!({"type": "tool_use", "id": id, "name": tool, "input": input}));
    }
    blocks
}

fn start_of(message: &Value) -> Value {
    json!({"type": "message_start", "message": message})
}

fn stream(reply: &mut Reply, message: &Value, blocks: &[Value], answer: &Answer) -> io::Result<()> {
    reply.event(&start_of(message))?;
    for (index, block) in blocks.iter().enumerate() {
        let mut empty = block.clone();
        let delta = if block["type"] == "text" {
            empty["text"] = "".into();
            json!({"type": "text_delta", "text": block["text"]})
        } else {
            empty["input"] = json!({});
            json!({"type": "input_json_delta", "partial_json": block["input"].to_string()})
        };
        let start = json!({"type": "content_block_start", "index": index, "content_block": empty});
        reply.event(&start)?;
        reply.event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))?;
        reply.event(&json!({"type": "content_block_stop", "index": index}))?;
    }
    let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": null});
    let usage = usage(&answer.tokens);
    reply.event(&json!({"type": "message_delta", "delta": delta, "usage": usage}))?;
    reply.event(&json!({"type": "message_stop"}))
}
