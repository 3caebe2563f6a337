//! MCP over a WebSocket, for `kennel mcp`, which copies lines to and from it.
//!
//! Owns: one message of JSON-RPC as one message of the socket, and that none is left without an
//! answer: what does not read is answered with an error that has its id.

use std::fmt;
use std::sync::Arc;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserialize;
use tokio::sync::Mutex;

/// The end of a connection that rmcp reads from and writes to.
pub(super) struct Lines {
    from: SplitStream<WebSocket>,
    to: Writer,
}

/// Where answers go. Every copy is the same one.
#[derive(Clone)]
pub(super) struct Writer(Arc<Mutex<SplitSink<WebSocket, Message>>>);

/// The client left, or cannot be reached.
#[derive(Debug)]
pub(super) struct Left;

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client left")
    }
}

impl std::error::Error for Left {}

impl Lines {
    pub(super) fn new(socket: WebSocket) -> Self {
        let (to, from) = socket.split();
        Self { from, to: Writer(Arc::new(Mutex::new(to))) }
    }

    pub(super) fn writer(&self) -> Writer {
        self.to.clone()
    }

    /// The next text.
    pub(super) async fn text(&mut self) -> Option<String> {
        loop {
            match self.from.next().await? {
                Ok(Message::Text(text)) => return Some(text.as_str().to_owned()),
                Ok(Message::Binary(bytes)) => {
                    return Some(String::from_utf8_lossy(&bytes).into_owned());
                }
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) | Err(_) => return None,
            }
        }
    }
}

impl Writer {
    async fn send(&self, message: Message) -> Result<(), Left> {
        self.0.lock().await.send(message).await.map_err(|_| Left)
    }

    async fn say(&self, message: &ServerJsonRpcMessage) -> Result<(), Left> {
        let text = serde_json::to_string(message).map_err(|_| Left)?;
        self.send(Message::Text(text.into())).await
    }

    /// Says goodbye, so that a client does not start the daemon again that was told to leave.
    pub(super) async fn leave(&self) {
        let frame = CloseFrame { code: close_code::AWAY, reason: "the daemon leaves".into() };
        // Nobody is left to be told that this failed.
        let _ = self.send(Message::Close(Some(frame))).await;
    }
}

impl Transport<RoleServer> for Lines {
    type Error = Left;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Left>> + Send + 'static {
        let to = self.to.clone();
        async move { to.say(&item).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let text = self.text().await?;
            match serde_json::from_str(&text) {
                Ok(message) => return Some(message),
                Err(e) => {
                    if let Some(answer) = unreadable(&text, &e)
                        && self.to.say(&answer).await.is_err()
                    {
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Left> {
        // Who left first need not be told.
        let _ = self.to.send(Message::Close(None)).await;
        Ok(())
    }
}

/// The answer to something that is no message: with its id, if it has one. None to what looks like
/// an answer or a notice itself, which nobody waits for.
fn unreadable(text: &str, error: &serde_json::Error) -> Option<ServerJsonRpcMessage> {
    #[derive(Deserialize)]
    struct Looks {
        id: Option<RequestId>,
        method: Option<serde::de::IgnoredAny>,
        result: Option<serde::de::IgnoredAny>,
        error: Option<serde::de::IgnoredAny>,
    }
    let (id, error) = match serde_json::from_str::<Looks>(text) {
        Ok(Looks { id: None, method: Some(_), .. }) => return None,
        Ok(Looks { result: Some(_), .. } | Looks { error: Some(_), .. }) => return None,
        Ok(Looks { id, .. }) => {
            (id, ErrorData::invalid_request("this is not a request of MCP", None))
        }
        Err(_) if error.is_data() => {
            (None, ErrorData::invalid_request("this is not a request of MCP", None))
        }
        Err(_) => (None, ErrorData::parse_error(format!("this is not JSON: {error}"), None)),
    };
    Some(ServerJsonRpcMessage::error(error, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<serde_json::Value> {
        let error = serde_json::from_str::<RxJsonRpcMessage<RoleServer>>(text).err()?;
        unreadable(text, &error).map(|answer| serde_json::to_value(answer).unwrap())
    }

    #[test]
    fn what_does_not_read_is_answered_with_its_id() {
        for (text, id, code) in [
            ("{", None, -32700),
            ("[]", None, -32600),
            ("7", None, -32600),
            (r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#, Some(7), -32600),
            (r#"{"id":8}"#, Some(8), -32600),
        ] {
            let answer = answer(text).unwrap_or_else(|| panic!("{text} is not answered"));
            assert_eq!(answer["error"]["code"], code, "{text}: {answer}");
            assert_eq!(answer["id"].as_i64(), id, "{text}: {answer}");
        }
        assert_eq!(answer(r#"{"jsonrpc":"1.0","method":"x"}"#), None);
        assert_eq!(answer(r#"{"jsonrpc":"1.0","id":1,"result":{}}"#), None);
    }
}
