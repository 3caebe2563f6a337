//! `GET /v1/runs/{run}/attach`: a run's terminal or streams, live in both directions, over a
//! WebSocket.
//!
//! Owns: joining the socket to the run's keeper. The screen as it is comes first, then what is
//! written. Anybody may look; one at a time may write, and the size is the writer's.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use kennel_process::{
    Connection, ConnectionError, Event as Told, Stream, TerminalSize, Told as Heard,
};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::error::ApiError;
use super::input::{MAX_INPUT_BYTES, refused};
use super::{App, BadQuery, wire};
use crate::observe::Listening;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachQuery {
    /// Only look.
    #[serde(default)]
    read_only: bool,
}

/// Runs that somebody is writing to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writers(Arc<Mutex<HashSet<String>>>);

/// The right to write to a run, given back when dropped.
struct Writer {
    writers: Writers,
    run: String,
}

impl Writers {
    fn take(&self, run: &str) -> Option<Writer> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.insert(run.to_owned());
        free.then(|| Writer { writers: self.clone(), run: run.to_owned() })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.writers.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.run);
    }
}

/// Attaches to a run over a WebSocket. Messages are described by `AttachMessage`.
#[utoipa::path(get, path = "/v1/runs/{run}/attach", params(("run" = String, Path), AttachQuery),
    responses((status = 101, body = wire::AttachMessage)))]
pub(super) async fn attach(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<AttachQuery>, BadQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let upgrade = upgrade.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let run = app.meant_by(&name).await?;
    let dir = app.home.run_dir(&run.id);
    let opened = app.talks.talk(move || {
        let mut output = Connection::open(&dir)?;
        output.watch()?;
        output.attach()?;
        Ok((output, Connection::open(&dir)?))
    });
    let (output, input) = opened.await?.map_err(|e: ConnectionError| refused(&e))?;
    let writer = if query.read_only { None } else { app.writers.take(&run.id) };
    let session = Session { input: Some(input), writer, pty: run.request.terminal };
    let leaving = app.leaving.clone();
    Ok(upgrade.max_message_size(MAX_INPUT_BYTES).on_upgrade(async move |socket| {
        // Whoever leaves first ends it; nobody is left to be told of an error.
        drop(session.serve(socket, output, leaving).await);
    }))
}

/// One client's attachment to one run.
struct Session {
    /// Away while a message is being handed over.
    input: Option<Connection>,
    writer: Option<Writer>,
    pty: bool,
}

/// The client left, or cannot be reached.
struct Left;

impl Session {
    async fn serve(
        mut self,
        mut socket: WebSocket,
        output: Connection,
        mut leaving: watch::Receiver<bool>,
    ) -> Result<(), Left> {
        let attached =
            wire::AttachMessage::Attached { writer: self.writer.is_some(), pty: self.pty };
        say(&mut socket, &attached).await?;
        let mut keeper = Listening::to(output).map_err(|_| Left)?;
        loop {
            tokio::select! {
                heard = keeper.heard() => match heard {
                    Ok(heard) => {
                        for told in heard {
                            if pass_on(&mut socket, told).await? == Over::Yes {
                                return end(socket).await;
                            }
                        }
                    }
                    Err(_) => return end(socket).await,
                },
                message = socket.recv() => match message {
                    Some(Ok(message)) => self.take(&mut socket, message).await?,
                    Some(Err(_)) | None => return Ok(()),
                },
                // Told, so that a client does not start the daemon again that was told to leave.
                () = async { drop(leaving.wait_for(|leaving| *leaving).await) } => {
                    return close(socket, close_code::AWAY, "the daemon leaves").await;
                }
            }
        }
    }

    async fn take(&mut self, socket: &mut WebSocket, message: Message) -> Result<(), Left> {
        let asked = match message {
            Message::Binary(bytes) => Asked::Write(bytes.to_vec()),
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(wire::AttachMessage::Resize(size)) => Asked::Resize(size),
                Ok(wire::AttachMessage::CloseStdin) => Asked::CloseStdin,
                Ok(
                    wire::AttachMessage::Attached { .. }
                    | wire::AttachMessage::Skipped(_)
                    | wire::AttachMessage::Ended
                    | wire::AttachMessage::Refused(_),
                )
                | Err(_) => {
                    let e = ApiError::bad_request("this is not a message a client may send");
                    return say(socket, &wire::AttachMessage::Refused(e.into_wire())).await;
                }
            },
            Message::Ping(_) | Message::Pong(_) => return Ok(()),
            Message::Close(_) => return Err(Left),
        };
        let refused = if self.writer.is_some() {
            self.hand_over(asked).await?.err()
        } else {
            Some(ApiError::new(StatusCode::CONFLICT, "not_the_writer", "somebody else is writing"))
        };
        match refused {
            None => Ok(()),
            Some(e) => say(socket, &wire::AttachMessage::Refused(e.into_wire())).await,
        }
    }

    async fn hand_over(&mut self, asked: Asked) -> Result<Result<(), ApiError>, Left> {
        let Some(mut keeper) = self.input.take() else { return Err(Left) };
        let done = tokio::task::spawn_blocking(move || {
            let done = match asked {
                Asked::Write(bytes) => keeper.write(&bytes),
                Asked::Resize(wire::Size { rows, cols }) => {
                    keeper.resize(TerminalSize { rows, cols })
                }
                Asked::CloseStdin => keeper.close_stdin(),
            };
            (keeper, done)
        });
        let (keeper, done) = done.await.map_err(|_| Left)?;
        self.input = Some(keeper);
        Ok(done.map_err(|e| refused(&e)))
    }
}

enum Asked {
    Write(Vec<u8>),
    Resize(wire::Size),
    CloseStdin,
}

#[derive(PartialEq, Eq)]
enum Over {
    Yes,
    No,
}

async fn pass_on(socket: &mut WebSocket, told: Heard) -> Result<Over, Left> {
    match told {
        Heard::Output { stream, bytes, .. } => {
            let stream = match stream {
                Stream::Terminal => 0,
                Stream::Stdout => 1,
                Stream::Stderr => 2,
            };
            send(socket, stream, bytes).await?;
        }
        Heard::Screen { bytes, .. } => send(socket, 0, bytes).await?,
        Heard::Event(Told::Skipped { bytes, .. }) => {
            say(socket, &wire::AttachMessage::Skipped(bytes)).await?;
        }
        Heard::Event(Told::Ended(_)) => return Ok(Over::Yes),
        Heard::Event(
            Told::Stopping(_)
            | Told::Warned(_)
            | Told::Usage(_)
            | Told::Exited(_)
            | Told::Stuck { .. }
            | Told::Outside { .. },
        ) => {}
    }
    Ok(Over::No)
}

async fn send(socket: &mut WebSocket, stream: u8, mut bytes: Vec<u8>) -> Result<(), Left> {
    bytes.insert(0, stream);
    socket.send(Message::Binary(bytes.into())).await.map_err(|_| Left)
}

async fn say(socket: &mut WebSocket, message: &wire::AttachMessage) -> Result<(), Left> {
    let text = serde_json::to_string(message).map_err(|_| Left)?;
    socket.send(Message::Text(text.into())).await.map_err(|_| Left)
}

async fn end(mut socket: WebSocket) -> Result<(), Left> {
    say(&mut socket, &wire::AttachMessage::Ended).await?;
    close(socket, close_code::NORMAL, "the run is over").await
}

async fn close(mut socket: WebSocket, code: u16, reason: &'static str) -> Result<(), Left> {
    let frame = CloseFrame { code, reason: reason.into() };
    socket.send(Message::Close(Some(frame))).await.map_err(|_| Left)
}
