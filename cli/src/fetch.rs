//! Where texts to train on are kept, and how Tiny Shakespeare gets there.
//!
//! A download is checked against its SHA-256 before it takes its name, so what is in the data directory is whole.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::config::ConfigBuilder;
use ureq::typestate::AgentScope;

use kernfusion::atomic_file::AtomicFile;
use kernfusion_lm::text::TINY_SHAKESPEARE_FILE;

/// The forty thousand lines of Shakespeare that Karpathy's char-rnn made customary.
const TINY_SHAKESPEARE_URL: &str =
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt";

const TINY_SHAKESPEARE_SHA256: &str = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";

/// What can go wrong while a file is fetched. Nothing of it is left behind then.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server could not be reached, or the connection broke.
    #[error("cannot download {url}: {cause}")]
    Network {
        /// The address.
        url: String,
        /// What went wrong.
        cause: Box<ureq::Error>,
    },
    /// The server answered, but not with the file.
    #[error("cannot download {url}: the server answered with HTTP status {status}")]
    Status {
        /// The address.
        url: String,
        /// The status code of the answer.
        status: u16,
    },
    /// The file came, but is not the expected one.
    #[error("{url} is not the expected file: its SHA-256 is {found}, not {expected}")]
    Hash {
        /// The address.
        url: String,
        /// The SHA-256 of what came, in hexadecimal.
        found: String,
        /// The SHA-256 that it should have.
        expected: String,
    },
    /// The file could not be written, or one of its name not be read.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// How a file came to be where it should be; `Display` is the line to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// It was downloaded.
    Downloaded {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
    },
    /// It was there, with the right content.
    AlreadyThere {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for Fetched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Downloaded { path, bytes } => {
                write!(formatter, "downloaded {bytes} bytes to {}", path.display())
            }
            Self::AlreadyThere { path } => write!(formatter, "{} is already there and whole", path.display()),
        }
    }
}

/// Downloads Tiny Shakespeare (1.1 MB) into `directory`, which is created where it is missing; shows a progress bar
/// on a terminal. A file of that name with other content is replaced.
///
/// # Errors
/// [`FetchError`]; the directory is then as it was.
pub fn fetch_tiny_shakespeare(directory: &Path) -> Result<Fetched, FetchError> {
    fetch(TINY_SHAKESPEARE_URL, TINY_SHAKESPEARE_SHA256, &directory.join(TINY_SHAKESPEARE_FILE))
}

/// Downloads `url` to `path` if what is there does not have the SHA-256 `expected` (64 lower-case hexadecimal
/// digits).
///
/// # Errors
/// [`FetchError`]; what was at `path` is then untouched.
pub fn fetch(url: &str, expected: &str, path: &Path) -> Result<Fetched, FetchError> {
    fetch_with(ureq::Agent::config_builder(), url, expected, path)
}

/// [`fetch`] with further settings for the connection.
fn fetch_with(
    settings: ConfigBuilder<AgentScope>,
    url: &str,
    expected: &str,
    path: &Path,
) -> Result<Fetched, FetchError> {
    let write_error = |cause| FetchError::Write { path: path.into(), cause };
    if hash_of_file(path).map_err(write_error)?.as_deref() == Some(expected) {
        return Ok(Fetched::AlreadyThere { path: path.into() });
    }
    let agent = agent(settings);
    let network_error = |cause| match cause {
        ureq::Error::StatusCode(status) => FetchError::Status { url: url.into(), status },
        cause => FetchError::Network { url: url.into(), cause: Box::new(cause) },
    };
    let body = agent.get(url).call().map_err(network_error)?.into_body();
    let progress = progress_bar(body.content_length());
    let mut reader = progress.wrap_read(body.into_reader());
    let mut file = AtomicFile::create(path).map_err(write_error)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut piece = [0; 1 << 14];
    // Reading and writing fail for different reasons, which `io::copy` would not tell apart.
    loop {
        let count = reader.read(&mut piece).map_err(|cause| network_error(cause.into()))?;
        if count == 0 {
            break;
        }
        hash.update(&piece[..count]);
        file.write_all(&piece[..count]).map_err(write_error)?;
        bytes += count as u64;
    }
    progress.finish_and_clear();
    let found = hexadecimal(&hash.finalize());
    if found != expected {
        return Err(FetchError::Hash { url: url.into(), found, expected: expected.into() });
    }
    file.commit().map_err(write_error)?;
    Ok(Fetched::Downloaded { path: path.into(), bytes })
}

/// No limit for the whole download, which may be slow; but a server that falls silent is given up.
fn agent(settings: ConfigBuilder<AgentScope>) -> ureq::Agent {
    let settings = settings
        .timeout_resolve(Some(Duration::from_secs(20)))
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_per_read(Some(Duration::from_secs(30)));
    settings.build().into()
}

/// A bar on the terminal, of known or unknown length; nothing where standard error is no terminal.
fn progress_bar(length: Option<u64>) -> ProgressBar {
    let template = match length {
        Some(_) => "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}",
        None => "{spinner} {bytes}, {bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    length.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
}

/// The SHA-256 of a file, or nothing if there is no such file.
fn hash_of_file(path: &Path) -> io::Result<Option<String>> {
    match kernfusion::input_file::read(path) {
        Ok(bytes) => Ok(Some(hexadecimal(&Sha256::digest(bytes)))),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    const TEXT: &str = "To be, or not to be: that is the question.\n";

    /// A server on the loopback interface that gives one answer to one request; its address, and its thread, which
    /// ends with the request it got.
    fn server(answer: String) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/input.txt", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            connection.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        (url, thread)
    }

    fn ok(length: usize, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    fn hash() -> String {
        hexadecimal(&Sha256::digest(TEXT))
    }

    /// Fetches without any proxy that the environment may name.
    fn fetch_directly(url: &str, path: &Path) -> Result<Fetched, FetchError> {
        fetch_with(ureq::Agent::config_builder().proxy(None), url, &hash(), path)
    }

    /// The message of a fetch that must fail and leave nothing.
    fn failure(answer: String) -> (String, String) {
        let directory = tempfile::tempdir().unwrap();
        let (url, thread) = server(answer);
        let error = fetch_directly(&url, &directory.path().join("text.txt")).unwrap_err().to_string();
        thread.join().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        (error, url)
    }

    #[test]
    fn sha256_known_answer() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hexadecimal(&Sha256::digest("abc")), expected);
    }

    #[test]
    fn a_file_is_downloaded_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/text.txt");
        let (url, thread) = server(ok(TEXT.len(), TEXT));
        let fetched = fetch_directly(&url, &path).unwrap();
        assert_eq!(fetched, Fetched::Downloaded { path: path.clone(), bytes: 43 });
        assert!(thread.join().unwrap().starts_with("GET /input.txt HTTP/1.1\r\n"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
        // The server is gone, so the second fetch can only succeed without it.
        let fetched = fetch_directly(&url, &path).unwrap();
        assert_eq!(fetched.to_string(), format!("{} is already there and whole", path.display()));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_with_other_content_is_replaced_by_the_right_one_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text.txt");
        std::fs::write(&path, "half of i").unwrap();
        let (url, thread) = server(ok(5, "wrong"));
        assert!(matches!(fetch_directly(&url, &path), Err(FetchError::Hash { .. })));
        thread.join().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "half of i");
        let (url, thread) = server(ok(TEXT.len(), TEXT));
        assert!(matches!(fetch_directly(&url, &path), Ok(Fetched::Downloaded { .. })));
        thread.join().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
    }

    #[test]
    fn a_wrong_hash_is_shown_beside_the_right_one() {
        let (error, url) = failure(ok(5, "wrong"));
        let found = hexadecimal(&Sha256::digest("wrong"));
        assert_eq!(error, format!("{url} is not the expected file: its SHA-256 is {found}, not {}", hash()));
    }

    #[test]
    fn an_http_error_is_shown_with_its_status() {
        let (error, url) = failure("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone".into());
        assert_eq!(error, format!("cannot download {url}: the server answered with HTTP status 404"));
    }

    #[test]
    fn a_connection_that_breaks_is_an_error() {
        let (error, url) = failure(ok(TEXT.len(), &TEXT[..20]));
        assert!(error.starts_with(&format!("cannot download {url}: ")), "{error}");
    }

    #[test]
    fn no_network_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        // The port is free again once its listener is dropped, so nothing answers there.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let path = directory.path().join("deep/text.txt");
        let error = fetch_directly(&url, &path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot download {url}: ")), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let (url, _thread) = server(ok(TEXT.len(), TEXT));
        let error = fetch_directly(&url, &file.join("text.txt")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("text.txt: "), "{error}");
    }
}
