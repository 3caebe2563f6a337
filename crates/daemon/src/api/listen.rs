//! Who may connect: our own user on the private socket; on TCP, if that was asked for, whoever has
//! the token, from this machine, and no page of a browser that was not served by us.
//!
//! Owns: both listeners' checks. Each rule alone has been got around somewhere; all of them apply.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use kennel_process::Peer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, unix};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use super::error::ApiError;
use crate::random::{self, TOKEN_DIGITS};

/// Pause after an accept that failed: out of descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Names of this machine for itself.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Connections at once on the private socket: what waits in `wait`, `logs -f` and events.
const MAX_OWN_CONNECTIONS: usize = 1024;
/// Connections at once over TCP: whoever opens them need not have the token yet.
const MAX_TCP_CONNECTIONS: usize = 64;
/// How long whoever connected over TCP may take to say what it wants: it may have no token, and
/// keeps a place from others.
const HEAD_BOUND: Duration = Duration::from_secs(10);
/// What ends a request's head.
const HEAD_END: &[u8; 4] = b"\r\n\r\n";

/// Who asks, as far as the connection tells.
#[derive(Clone, Debug)]
pub(crate) enum Asker {
    /// A process of this machine, held since it was let in; or it had ended by then.
    Process(Option<Arc<Peer>>),
    /// Whoever has the token.
    Token,
}

impl Connected<IncomingStream<'_, OwnersOnly>> for Asker {
    fn connect_info(stream: IncomingStream<'_, OwnersOnly>) -> Self {
        Self::Process(Peer::of(&stream.io().stream).ok().map(Arc::new))
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Asker {
    fn connect_info(_: IncomingStream<'_, Bounded>) -> Self {
        Self::Token
    }
}

/// A connection that counts while it is open.
pub(crate) struct Counted<S> {
    stream: S,
    /// Until its first request was read.
    head: Option<Head>,
    _place: OwnedSemaphorePermit,
}

/// A head that is being waited for.
struct Head {
    until: Pin<Box<Sleep>>,
    /// How much of its end was just read.
    matched: usize,
}

impl Head {
    fn within(bound: Duration) -> Self {
        Self { until: Box::pin(tokio::time::sleep(bound)), matched: 0 }
    }

    /// True if the end is among what was read.
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| {
            self.matched = match *byte == HEAD_END[self.matched] {
                true => self.matched + 1,
                false => usize::from(*byte == HEAD_END[0]),
            };
            self.matched == HEAD_END.len()
        })
    }
}

/// A listener that serves nobody but our own user and root.
pub(crate) struct OwnersOnly {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

impl OwnersOnly {
    pub(crate) fn new(listener: UnixListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(MAX_OWN_CONNECTIONS)) }
    }
}

/// A listener that lets in a bounded number; who may ask what is the guard's.
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(MAX_TCP_CONNECTIONS)) }
    }
}

/// Waits for a place. The semaphore is never closed.
async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match places.clone().acquire_owned().await {
        Ok(place) => place,
        Err(_) => std::future::pending().await,
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Counted<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let place = place(&self.places).await;
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let head = Some(Head::within(HEAD_BOUND));
                    return (Counted { stream, head, _place: place }, from);
                }
                Err(e) => {
                    tracing::error!("failed to accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Some(head) = &mut self.head else { return read };
        match read {
            Poll::Pending if head.until.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(Ok(())) if head.ends_in(&buffer.filled()[before..]) => {
                self.head = None;
                read
            }
            Poll::Pending | Poll::Ready(_) => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl axum::serve::Listener for OwnersOnly {
    type Io = Counted<UnixStream>;
    type Addr = unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, unix::SocketAddr) {
        let own = rustix::process::geteuid().as_raw();
        let place = place(&self.places).await;
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    if stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
                        return (Counted { stream, head: None, _place: place }, from);
                    }
                    tracing::warn!("turned a stranger away: {:?}", stream.peer_cred());
                }
                Err(e) => {
                    tracing::error!("failed to accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<unix::SocketAddr> {
        self.listener.local_addr()
    }
}

/// What a request over TCP must show.
#[derive(Clone)]
pub(crate) struct Guard(Arc<Rules>);

struct Rules {
    token: String,
    names: Vec<String>,
}

impl Guard {
    pub(crate) fn new(token: String, address: SocketAddr) -> Self {
        let names = OWN_NAMES.iter().map(|name| (*name).to_owned());
        let own = match address {
            SocketAddr::V4(v4) => v4.ip().to_string(),
            SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        };
        Self(Arc::new(Rules { token, names: names.chain([own]).collect() }))
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        // First: a page that had its own name point to this machine still sends that name.
        if !text(header::HOST).is_some_and(|host| self.is_ours(host)) {
            return Err(forbidden("bad_host", "this is not a name of this machine"));
        }
        if let Some(origin) = text(header::ORIGIN) {
            let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            if !host.is_some_and(|host| self.is_ours(host)) {
                return Err(forbidden("bad_origin", "pages from elsewhere may not ask"));
            }
        }
        let given = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if !given.is_some_and(|given| same(given.as_bytes(), self.0.token.as_bytes())) {
            let message = "a token is needed";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "bad_token", message)
                .hint("send `Authorization: Bearer TOKEN` with what is in the home's `token`"));
        }
        Ok(())
    }

    /// A name of ours, with or without a port.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        self.0.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

pub(crate) async fn guarded(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(request.headers()) {
        Ok(()) => next.run(request).await,
        // It may not keep a place of those who may ask.
        Err(e) => ([(header::CONNECTION, "close")], e).into_response(),
    }
}

fn forbidden(code: &str, message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, code, message)
}

/// Compares in a time that says nothing about where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// Only this machine: there is no encryption, so that anything else would be open to the network.
pub(crate) fn check_address(address: SocketAddr) -> io::Result<()> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let why = format!(
        "{address} can be reached from other machines, and kennel has no encryption: listen on \
         127.0.0.1 or [::1] and forward the port with ssh"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// The token that the file has, made up if there is none.
pub(crate) fn token(path: &Path) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().len() == TOKEN_DIGITS => return Ok(text.trim().to_owned()),
        Ok(_) => {
            let why = format!("{} does not hold a token: remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Err(_) => {}
    }
    let token = random::token()?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(with: &[(header::HeaderName, &str)]) -> Option<String> {
        let guard = Guard::new("t0ken".to_owned(), "127.0.0.1:80".parse().unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in with {
            headers.insert(name, value.parse().unwrap());
        }
        guard.check(&headers).err().map(|e| e.code().to_owned())
    }

    #[test]
    fn a_request_needs_our_name_our_page_and_the_token() {
        use header::{AUTHORIZATION, HOST, ORIGIN};
        let token = (AUTHORIZATION, "Bearer t0ken");
        for (headers, refused) in [
            (vec![(HOST, "localhost:8080"), token.clone()], None),
            (vec![(HOST, "[::1]:8080"), token.clone()], None),
            (vec![(HOST, "127.0.0.1"), (ORIGIN, "http://127.0.0.1:1"), token.clone()], None),
            (vec![token.clone()], Some("bad_host")),
            (vec![(HOST, "evil.example"), token.clone()], Some("bad_host")),
            (vec![(HOST, "localhost.evil.example:80"), token.clone()], Some("bad_host")),
            (
                vec![(HOST, "localhost"), (ORIGIN, "http://evil.example"), token.clone()],
                Some("bad_origin"),
            ),
            (vec![(HOST, "localhost"), (ORIGIN, "null"), token], Some("bad_origin")),
            (vec![(HOST, "localhost")], Some("bad_token")),
            (vec![(HOST, "localhost"), (AUTHORIZATION, "Bearer t0keN")], Some("bad_token")),
            (vec![(HOST, "localhost"), (AUTHORIZATION, "Bearer ")], Some("bad_token")),
        ] {
            assert_eq!(asked(&headers).as_deref(), refused, "{headers:?}");
        }
    }

    #[test]
    fn the_end_of_a_head_is_seen_however_it_is_cut() {
        let ends = |pieces: &[&str]| {
            let mut head = Head { until: Box::pin(tokio::time::sleep(Duration::ZERO)), matched: 0 };
            pieces.iter().any(|piece| head.ends_in(piece.as_bytes()))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _within = runtime.enter();
        assert!(ends(&["GET / HTTP/1.1\r\nhost: k\r\n\r\n"]));
        assert!(ends(&["GET / HTTP/1.1\r\nhost: k\r", "\n", "\r", "\nmore"]));
        assert!(ends(&["a\r\r\n\r\n"]));
        assert!(!ends(&["GET / HTTP/1.1\r\nhost: k\r\n", "\r", "x\n"]));
    }

    #[test]
    fn who_says_nothing_whole_in_time_is_let_go() {
        use tokio::io::AsyncReadExt;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = |said: &'static [u8]| {
            runtime.block_on(async move {
                let (mut client, server) = tokio::io::duplex(64);
                tokio::io::AsyncWriteExt::write_all(&mut client, said).await.unwrap();
                let _place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
                let head = Some(Head::within(Duration::from_millis(50)));
                let mut counted = Counted { stream: server, head, _place };
                let mut all = Vec::new();
                let mut reading = std::pin::pin!(counted.read_to_end(&mut all));
                tokio::select! {
                    read = &mut reading => read.unwrap_err().kind(),
                    () = tokio::time::sleep(Duration::from_millis(300)) => io::ErrorKind::Other,
                }
            })
        };
        assert_eq!(read(b""), io::ErrorKind::TimedOut);
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), io::ErrorKind::TimedOut);
        // Who has said it whole may take its time: it is told something, or follows.
        assert_eq!(read(b"GET / HTTP/1.1\r\n\r\n"), io::ErrorKind::Other);
    }

    #[test]
    fn only_this_machine_is_listened_to() {
        for (address, ok) in [
            ("127.0.0.1:0", true),
            ("[::1]:80", true),
            ("0.0.0.0:80", false),
            ("[::]:80", false),
            ("192.168.0.1:80", false),
        ] {
            assert_eq!(check_address(address.parse().unwrap()).is_ok(), ok, "{address}");
        }
    }
}
