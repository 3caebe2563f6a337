//! One request to a receiver, and what its answer means.
//!
//! ```text
//! address -> looked up -> each that is allowed is tried -> TLS if https -> POST -> status
//!   2xx delivered    410 never again    429, 503 later, as Retry-After says    else later
//! ```
//!
//! Owns: who is connected to, which is decided by the very address that is connected to and not by
//! its name; what is sent, signed; and every bound. Follows no redirect. Knows nothing of retries.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::header::{
    CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
};
use axum::http::{Method, Request, Response, StatusCode, Uri};
use hmac::{Hmac, Mac};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Failed;
use crate::config::Secret;

/// How long one request may take, from the name to the status, if nothing is said: a receiver that
/// does more before it answers should put it off.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long one address of several may take to be connected to.
const CONNECT_BOUND: Duration = Duration::from_secs(5);
/// So many addresses of a name are tried.
const MAX_ADDRESSES: usize = 4;
/// As much of an answer is read, for the sentence about a failure.
const MAX_ANSWER_BYTES: usize = 4 << 10;
/// As much memory may an answer's head take.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// As much of what a receiver said is told.
const MAX_QUOTED_CHARS: usize = 200;
/// The longest that a receiver may put us off.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Where requests go and how.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) url: String,
    pub(super) secret: Option<Secret>,
    pub(super) remote: bool,
    pub(super) answer_within: Duration,
}

/// What is sent.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The notice's id: the same for every try.
    pub(super) key: String,
    pub(super) event: String,
    /// JSON.
    pub(super) body: String,
    /// When, in seconds of the Unix clock: what is signed has it.
    pub(super) at_s: u64,
}

/// Sends a message and waits for the status. Returns what the receiver answered, in a word.
pub(super) async fn post(target: &Target, message: &Message) -> Result<String, Failed> {
    let within = target.answer_within;
    let sent = tokio::time::timeout(within, send(target, message)).await;
    sent.unwrap_or_else(|_| {
        let shown = shown(&target.url);
        Err(Failed::later(format!("{shown} did not answer within {within:?}")))
    })
}

async fn send(target: &Target, message: &Message) -> Result<String, Failed> {
    let place = Place::of(&target.url)?;
    let shown = shown(&target.url);
    let request = request(&place, target, message)?;
    let stream = connect(&place, target.remote).await?;
    if place.tls {
        return over_tls(&place.host, &shown, stream, tls()?, request).await;
    }
    exchange(&shown, TokioIo::new(stream), request).await
}

async fn over_tls(
    host: &str,
    shown: &str,
    stream: TcpStream,
    config: Arc<ClientConfig>,
    request: Request<Full<Bytes>>,
) -> Result<String, Failed> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Failed::later(format!("{shown} has no name for TLS")))?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    let stream = stream.map_err(|e| failed(shown, "TLS", &e))?;
    exchange(shown, TokioIo::new(stream), request).await
}

async fn exchange<S>(url: &str, stream: S, request: Request<Full<Bytes>>) -> Result<String, Failed>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut http = hyper::client::conn::http1::Builder::new();
    http.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) =
        http.handshake(stream).await.map_err(|e| failed(url, "HTTP", &e))?;
    let talk = async {
        let answer = sender.send_request(request).await;
        judge(url, answer.map_err(|e| failed(url, "the request", &e))?).await
    };
    tokio::pin!(talk, connection);
    let mut open = true;
    loop {
        tokio::select! {
            judged = &mut talk => return judged,
            // It moves the bytes; how it ends is told by the request.
            _ = &mut connection, if open => open = false,
        }
    }
}

async fn judge(url: &str, answer: Response<Incoming>) -> Result<String, Failed> {
    let (status, headers) = (answer.status(), answer.headers().clone());
    if status.is_success() {
        return Ok(status.to_string());
    }
    if status.is_redirection() {
        let to = headers.get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()));
        let to = to.map(|to| format!(" to {}", quoted(&shown(&to)))).unwrap_or_default();
        let words =
            format!("{url} answered {status}{to}: redirects are not followed, name the end");
        return Err(Failed::later(words));
    }
    let said = said(answer).await;
    let words = format!("{url} answered {status}{said}");
    match status {
        StatusCode::GONE => Err(Failed::never(words)),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(Failed::later(words).not_before(retry_after(&headers)))
        }
        _ => Err(Failed::later(words)),
    }
}

/// The beginning of what a receiver said, for people.
async fn said(answer: Response<Incoming>) -> String {
    match Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await {
        Ok(body) => {
            let text = quoted(&String::from_utf8_lossy(&body.to_bytes()));
            if text.is_empty() { text } else { format!(": {text}") }
        }
        // Longer than that, or cut off: the status says enough.
        Err(_) => String::new(),
    }
}

fn quoted(text: &str) -> String {
    let plain = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_QUOTED_CHARS).collect()
}

/// Seconds alone: a date would need the receiver's clock to be right.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// The parts of an address.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    tls: bool,
    /// Without brackets.
    host: String,
    port: u16,
    /// As it is written, for the receiver.
    authority: String,
    path: String,
}

impl Place {
    fn of(url: &str) -> Result<Self, Failed> {
        let bad = || Failed::later("its url is no address".to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(bad()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let authority = match uri.port_u16() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: plain.to_owned(), port, authority, path })
    }
}

/// An address for people: receivers have keys in their paths.
fn shown(url: &str) -> String {
    let after = url.find("://").map_or(0, |at| at + 3);
    let end = url[after..].find(['/', '?', '#']).map_or(url.len(), |at| after + at);
    url[..end].to_owned()
}

/// A connection to the first address of the name that takes one, of those that are allowed.
async fn connect(place: &Place, remote: bool) -> Result<TcpStream, Failed> {
    let Place { host, port, .. } = place;
    let found = lookup_host((host.as_str(), *port)).await;
    let found = found.map_err(|e| Failed::later(format!("{host} cannot be looked up: {e}")))?;
    let mut why = format!("{host} has no address");
    for address in found.take(MAX_ADDRESSES) {
        if !remote && !is_own(address.ip()) {
            let ip = address.ip();
            why = format!("{host} is {ip}, another machine: add remote = true if that is meant");
            continue;
        }
        match tokio::time::timeout(CONNECT_BOUND, to(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => why = format!("failed to connect to {address}: {e}"),
            Err(_) => why = format!("failed to connect to {address}: no answer"),
        }
    }
    Err(Failed::later(why))
}

async fn to(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// True if an address is this machine's own, in whatever clothes.
fn is_own(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn request(
    place: &Place,
    target: &Target,
    message: &Message,
) -> Result<Request<Full<Bytes>>, Failed> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&place.path)
        .header(HOST, &place.authority)
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("kennel/", env!("CARGO_PKG_VERSION")))
        .header("idempotency-key", header(&message.key)?)
        .header("kennel-event", header(&message.event)?);
    if let Some(secret) = &target.secret {
        let signed = signature(&read(secret)?, message);
        request = request.header("kennel-signature", header(&signed)?);
    }
    let body = Full::new(Bytes::from(message.body.clone()));
    request.body(body).map_err(|e| Failed::later(format!("{}: {e}", shown(&target.url))))
}

fn header(text: &str) -> Result<HeaderValue, Failed> {
    HeaderValue::from_str(text).map_err(|_| Failed::never(format!("{text:?} fits in no header")))
}

fn read(secret: &Secret) -> Result<String, Failed> {
    match secret {
        Secret::Text(text) => Ok(text.clone()),
        Secret::Variable(name) => std::env::var(name).map_err(|_| {
            Failed::later(format!("variable {name} is not in the daemon's environment"))
        }),
    }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 of the seconds, a dot and the body. The time is in it so that
/// who overheard a request cannot send it again much later.
fn signature(secret: &str, message: &Message) -> String {
    // Takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    mac.update(message.at_s.to_string().as_bytes());
    mac.update(b".");
    mac.update(message.body.as_bytes());
    let hex: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!("t={},v1={hex}", message.at_s)
}

/// The system's roots, read once. A receiver whose certificate they do not vouch for is not talked
/// to.
fn tls() -> Result<Arc<ClientConfig>, Failed> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Failed::later("this machine has no root certificates for https".to_owned()));
    }
    let config = trusting(roots)?;
    Ok(CONFIG.get_or_init(|| config).clone())
}

/// Says by which library it is done: what else is linked in must not change that.
fn trusting(roots: RootCertStore) -> Result<Arc<ClientConfig>, Failed> {
    let with = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let with = with.with_safe_default_protocol_versions();
    let with = with.map_err(|e| Failed::later(format!("TLS cannot be had: {e}")))?;
    Ok(Arc::new(with.with_root_certificates(roots).with_no_client_auth()))
}

/// With what caused it: the outer words of these libraries alone say little.
fn failed(url: &str, what: &str, error: &dyn std::error::Error) -> Failed {
    let mut words = format!("{url}: {what} failed: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_words = inner.to_string();
        if !words.contains(&inner_words) {
            words.push_str(&format!(": {inner_words}"));
        }
        cause = inner.source();
    }
    Failed::later(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_into_whom_to_connect_to_and_what_to_ask_for() {
        for (url, tls, host, port, authority, path) in [
            ("http://127.0.0.1:8080/a?b=c", false, "127.0.0.1", 8080, "127.0.0.1:8080", "/a?b=c"),
            ("https://h.example", true, "h.example", 443, "h.example", "/"),
            ("http://[::1]:9/x", false, "::1", 9, "[::1]:9", "/x"),
            ("http://h?x=1", false, "h", 80, "h", "/?x=1"),
        ] {
            let (host, authority, path) = (host.to_owned(), authority.to_owned(), path.to_owned());
            let expected = Place { tls, host, port, authority, path };
            assert_eq!(Place::of(url).unwrap(), expected, "{url}");
        }
        for bad in ["", "h.example", "ftp://h/", "http://"] {
            assert!(Place::of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_told_of_an_address_has_no_key_in_it() {
        for (url, expected) in [
            ("https://h.example/services/T0/KEY", "https://h.example"),
            ("http://127.0.0.1:8080?key=K", "http://127.0.0.1:8080"),
            ("http://h", "http://h"),
            ("/elsewhere/KEY", ""),
            ("", ""),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn only_loopback_is_this_machine_in_whatever_clothes() {
        for own in ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        for other in ["0.0.0.0", "10.0.0.1", "169.254.169.254", "::", "fe80::1", "::ffff:8.8.8.8"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn the_address_that_would_be_connected_to_is_the_one_that_is_judged() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = |host: &str, remote| {
            let place = Place::of(&format!("http://{host}:{port}/")).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(connect(&place, remote))
        };
        // It would be reached: every address of this machine is at the other end.
        let refused = to("0.0.0.0", false).unwrap_err();
        assert!(refused.error.contains("another machine"), "{refused:?}");
        assert!(listener.accept().is_err(), "somebody was connected to");
        to("0.0.0.0", true).unwrap();
        to("localhost", false).unwrap();
    }

    #[test]
    fn a_signature_is_over_time_and_body() {
        let message = |body: &str| Message {
            key: "r/ended/1".to_owned(),
            event: "ended".to_owned(),
            body: body.to_owned(),
            at_s: 7,
        };
        let one = signature("key", &message("{}"));
        // As `printf '7.{}' | openssl dgst -sha256 -hmac key` has it.
        let hex = "77bc83bd1f40422311e47918b203449aecf84b02c1568bb1b570ac2a474cc2d8";
        assert_eq!(one, format!("t=7,v1={hex}"));
        assert_ne!(one, signature("key", &message("{ }")));
        assert_ne!(one, signature("kez", &message("{}")));
        assert!(signature(&"k".repeat(1000), &message("{}")).starts_with("t=7,v1="));
    }

    #[test]
    fn a_receiver_may_put_us_off_for_seconds_within_a_bound() {
        let of = |text: &'static str| {
            let headers = [(RETRY_AFTER, HeaderValue::from_static(text))];
            retry_after(&headers.into_iter().collect())
        };
        assert_eq!(of("3"), Some(Duration::from_secs(3)));
        assert_eq!(of("999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(of("-1"), None);
    }

    /// A receiver with a certificate for localhost, which vouches for itself. Answers one request.
    async fn answer_one(listener: tokio::net::TcpListener) -> Option<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio_rustls::rustls::ServerConfig;
        use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
        let key = PrivatePkcs8KeyDer::from(include_bytes!("fixtures/localhost.key.der").to_vec());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate()], key.into())
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream =
            tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await.ok()?;
        let mut read = vec![0; 4096];
        let length = stream.read(&mut read).await.ok()?;
        stream.write_all(b"HTTP/1.1 204 X\r\n\r\n").await.ok()?;
        Some(String::from_utf8_lossy(&read[..length]).into_owned())
    }

    fn certificate() -> tokio_rustls::rustls::pki_types::CertificateDer<'static> {
        include_bytes!("fixtures/localhost.cert.der").to_vec().into()
    }

    #[test]
    fn https_reaches_whom_the_roots_vouch_for_under_its_name_and_nobody_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let post = |vouched: bool, name: &str| {
            runtime.block_on(async {
                let mut roots = RootCertStore::empty();
                if vouched {
                    roots.add(certificate()).unwrap();
                }
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let url = format!("https://{name}:{port}/x");
                let target = Target {
                    url: url.clone(),
                    secret: None,
                    remote: false,
                    answer_within: ANSWER_WITHIN,
                };
                let message = Message {
                    key: "r/ended/1".to_owned(),
                    event: "ended".to_owned(),
                    body: "{}".to_owned(),
                    at_s: 7,
                };
                let place = Place::of(&url).unwrap();
                let request = request(&place, &target, &message).unwrap();
                let stream = connect(&place, false).await.unwrap();
                let sent = over_tls(name, &url, stream, trusting(roots).unwrap(), request);
                tokio::join!(sent, answer_one(listener))
            })
        };
        let (sent, came) = post(true, "localhost");
        assert_eq!(sent, Ok("204 No Content".to_owned()));
        assert!(came.is_some_and(|came| came.starts_with("POST /x HTTP/1.1\r\n")));
        for (vouched, name) in [(false, "localhost"), (true, "127.0.0.1")] {
            let (sent, came) = post(vouched, name);
            assert!(sent.unwrap_err().error.contains("TLS failed"), "{vouched} {name}");
            assert_eq!(came, None, "it heard something");
        }
    }
}
