//! The instance metadata service of EC2, version 2: what tells an instance who it is.
//!
//! Source: the EC2 user guide, "Use the Instance Metadata Service to access instance metadata".

mod endpoint;
mod error;
mod exchange;

use std::thread;
use std::time::Duration;

use reqwest::Method;
use zeroize::Zeroizing;

use crate::clock::Deadline;
use crate::secret::Secret;

pub use endpoint::{METADATA_ENDPOINT, MetadataEndpoint};
pub use error::ImdsError;
use exchange::{Client, Question};

/// Where the service is: on every instance at the first address, on IPv6 at the second.
const ENDPOINTS: [&str; 2] = ["http://169.254.169.254", "http://[fd00:ec2::254]"];

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN: &str = "x-aws-ec2-metadata-token";
const TOKEN_TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// A minute outlasts the reads of one piece of evidence, and a token that leaks does not outlast it
/// by much.
const TTL_SECONDS: &str = "60";

/// How long a token is used: its time less what a read may take.
const USED_FOR: Duration = Duration::from_secs(50);

/// AWS does not say how long a token is; theirs have 56 characters.
const MAX_TOKEN_LEN: usize = 4 * 1024;

/// The pauses between tries: in the first seconds of a boot neither the network nor the service
/// need be there. Whoever runs us tries again later.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Less time is not worth a try, whose error would only hide the one before.
const LEAST_TRY: Duration = Duration::from_millis(500);

/// Reads under one token: a session with the service.
///
/// # Guarantees
///
/// - A token is asked for first (`IMDSv2`); there is no falling back to reads without.
/// - No proxy is used, whatever the environment says, no redirect followed, and no name resolved.
/// - No answer of more than 64 KiB is read, and nothing takes longer than its deadline.
/// - Neither the token nor what is read is in an error or a `Debug` text.
#[derive(Debug)]
pub struct Imds {
    client: Client,
    endpoint: String,
    token: Secret<String>,
    until: Deadline,
}

impl Imds {
    /// Asks for a token, at `endpoint` where one is set, patiently within the deadline.
    pub fn open(endpoint: Option<MetadataEndpoint>, deadline: Deadline) -> Result<Self, ImdsError> {
        let client = Client::new()?;
        let endpoints = match endpoint {
            Some(endpoint) => vec![endpoint.to_string()],
            None => ENDPOINTS.map(str::to_owned).to_vec(),
        };
        let (endpoint, token) =
            with_retries(deadline, || first_token(&client, &endpoints, deadline))?;
        Ok(Self {
            client,
            endpoint,
            token,
            until: Deadline::after(USED_FOR),
        })
    }

    /// Whether the token holds for another read.
    pub fn is_usable(&self) -> bool {
        !self.until.passed()
    }

    /// Reads what is at `path`, below `/latest/`, patiently within the deadline.
    pub fn read(&self, path: &str, deadline: Deadline) -> Result<Text, ImdsError> {
        let question = Question {
            method: Method::GET,
            endpoint: &self.endpoint,
            path: &format!("/latest/{path}"),
            header: (TOKEN, self.token.expose()),
        };
        let body = with_retries(deadline, || self.client.ask(&question, deadline))?;
        match std::str::from_utf8(&body) {
            Ok(text) => Ok(Zeroizing::new(text.to_owned())),
            Err(_) => Err(ImdsError::NotText {
                path: question.path.to_owned(),
            }),
        }
    }
}

/// What was read; it may be a secret, so its memory is overwritten when it is dropped.
pub type Text = Zeroizing<String>;

/// The first of the endpoints that can be reached says whether there is a token.
fn first_token(
    client: &Client,
    endpoints: &[String],
    deadline: Deadline,
) -> Result<(String, Secret<String>), ImdsError> {
    let mut unreachable = Vec::new();
    for endpoint in endpoints {
        let question = Question {
            method: Method::PUT,
            endpoint,
            path: TOKEN_PATH,
            header: (TOKEN_TTL, TTL_SECONDS),
        };
        match client.ask(&question, deadline) {
            Ok(body) => return Ok((endpoint.clone(), token(&body, endpoint)?)),
            Err(ImdsError::Unreachable { tried }) => unreachable.push(tried),
            Err(ImdsError::TimedOut {
                endpoint, waited, ..
            }) => {
                return Err(ImdsError::TokenTimedOut { endpoint, waited });
            }
            Err(error) => return Err(error),
        }
    }
    Err(ImdsError::Unreachable {
        tried: unreachable.join("; "),
    })
}

/// A token is a word that can stand in a header.
fn token(body: &[u8], endpoint: &str) -> Result<Secret<String>, ImdsError> {
    std::str::from_utf8(body)
        .ok()
        .filter(|text| (1..=MAX_TOKEN_LEN).contains(&text.len()))
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()))
        .map(|text| Secret::new(text.to_owned()))
        .ok_or_else(|| ImdsError::NoToken {
            endpoint: endpoint.to_owned(),
        })
}

/// Tries again what may pass by itself, as long as the deadline allows.
fn with_retries<T>(
    deadline: Deadline,
    mut attempt: impl FnMut() -> Result<T, ImdsError>,
) -> Result<T, ImdsError> {
    for pause in PAUSES {
        match attempt() {
            Err(error) if error.may_pass() && pause + LEAST_TRY < deadline.remaining() => {
                thread::sleep(pause);
            }
            result => return result,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests;
