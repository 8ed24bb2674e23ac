//! The EC2 instance metadata service, version 2: the source of an instance's identity.
//!
//! Source: the EC2 user guide, "Use the Instance Metadata Service to access instance metadata".

mod endpoint;
mod exchange;

use std::thread;
use std::time::Duration;

use kubelet_attestation::names::ProviderId;
use reqwest::Method;
use zeroize::Zeroizing;

use crate::clock::Deadline;
use crate::failure::Failure;
use crate::secret::Secret;

pub use endpoint::{METADATA_ENDPOINT, MetadataEndpoint};
use exchange::{Client, ImdsError, ImdsRequest};

/// The addresses of the service: the first on every instance, the second on instances with IPv6.
const ENDPOINTS: [&str; 2] = ["http://169.254.169.254", "http://[fd00:ec2::254]"];

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN: &str = "x-aws-ec2-metadata-token";
const TOKEN_TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// The lifetime of a token. One minute is sufficient to read the data for evidence, and a leaked token soon becomes
/// useless.
const TTL_SECONDS: &str = "60";

/// The time for which a token is used: its lifetime minus the duration of a read.
const USED_FOR: Duration = Duration::from_secs(50);

/// The maximum length of a token. AWS does not document a length, and real tokens are 56 characters long.
const MAX_TOKEN_LEN: usize = 4 * 1024;

/// The pauses between attempts. In the first seconds of a boot, the network or the service might not be ready. If all
/// attempts fail, a later run tries again.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// The minimum remaining time for another attempt. With less time, the error of that attempt would only hide the
/// previous error.
const LEAST_TRY: Duration = Duration::from_millis(500);

/// A session with the service, in which all reads use the same token.
///
/// # Guarantees
///
/// - A session starts with a token (`IMDSv2`). It never falls back to reads without a token.
/// - Requests do not use a proxy, even if the environment specifies one, do not follow redirects, and do not resolve
///   names.
/// - An answer is at most 64 KiB long, and no operation takes longer than its deadline.
/// - Neither the token nor an answer appears in an error or in `Debug` output.
#[derive(Debug)]
pub struct Imds {
    client: Client,
    endpoint: String,
    token: Secret<String>,
    until: Deadline,
}

impl Imds {
    /// Requests a token, from `endpoint` if one is set. Retries within the deadline.
    pub fn open(endpoint: Option<MetadataEndpoint>, deadline: Deadline) -> Result<Self, Failure> {
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

    /// Whether the token is still valid for a read.
    pub fn is_usable(&self) -> bool {
        !self.until.passed()
    }

    /// Reads `path`, which is relative to `/latest/`. Retries within the deadline.
    pub fn read(&self, path: &str, deadline: Deadline) -> Result<Text, Failure> {
        Ok(self.text(path, deadline)?)
    }

    /// Reads `path` as [`read`](Self::read) does; `None` if the path does not exist.
    pub fn find(&self, path: &str, deadline: Deadline) -> Result<Option<Text>, Failure> {
        match self.text(path, deadline) {
            Err(ImdsError::NotFound(_)) => Ok(None),
            read => Ok(Some(read?)),
        }
    }

    fn text(&self, path: &str, deadline: Deadline) -> Result<Text, ImdsError> {
        let question = ImdsRequest {
            method: Method::GET,
            endpoint: &self.endpoint,
            path: &format!("/latest/{path}"),
            header: (TOKEN, self.token.expose()),
        };
        let body = with_retries(deadline, || self.client.ask(&question, deadline))?;
        std::str::from_utf8(&body)
            .map(|text| Zeroizing::new(text.to_owned()))
            .map_err(|_| question.invalid("with data that is not text"))
    }
}

/// The provider ID of an instance, `aws:///<zone>/<id>`; `None` if the zone or the ID is invalid.
pub fn provider_id(zone: &str, id: &str) -> Option<ProviderId> {
    let is_plain = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty() && text.bytes().all(plain)
    };
    let is_instance = is_plain(zone) && is_plain(id) && id.starts_with("i-");
    is_instance.then(|| ProviderId::parse(&format!("aws:///{zone}/{id}")).ok())?
}

/// The body of a response. The body might be a secret, so its memory is zeroed on drop.
pub type Text = Zeroizing<String>;

/// Requests a token from the first endpoint that can be reached.
fn first_token(
    client: &Client,
    endpoints: &[String],
    deadline: Deadline,
) -> Result<(String, Secret<String>), ImdsError> {
    let mut unreachable = Vec::new();
    for endpoint in endpoints {
        let question = ImdsRequest {
            method: Method::PUT,
            endpoint,
            path: TOKEN_PATH,
            header: (TOKEN_TTL, TTL_SECONDS),
        };
        match client.ask(&question, deadline) {
            Ok(body) => return Ok((endpoint.clone(), token(&body, endpoint)?)),
            Err(ImdsError::Unreachable(why)) => unreachable.push(why),
            Err(error) => return Err(error),
        }
    }
    Err(ImdsError::Unreachable(unreachable.join("; ")))
}

/// Returns the token, which must be printable ASCII, because requests contain it in a header.
fn token(body: &[u8], endpoint: &str) -> Result<Secret<String>, ImdsError> {
    std::str::from_utf8(body)
        .ok()
        .filter(|text| (1..=MAX_TOKEN_LEN).contains(&text.len()))
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()))
        .map(|text| Secret::new(text.to_owned()))
        .ok_or_else(|| {
            let what = "did not return a valid IMDSv2 token";
            ImdsError::invalid(format!("the service at {endpoint} {what}"))
        })
}

/// Retries temporary errors until the deadline.
fn with_retries<T>(
    deadline: Deadline,
    mut attempt: impl FnMut() -> Result<T, ImdsError>,
) -> Result<T, ImdsError> {
    for pause in PAUSES {
        match attempt() {
            Err(ImdsError::Unreachable(_) | ImdsError::Temporary(_))
                if pause + LEAST_TRY < deadline.remaining() =>
            {
                thread::sleep(pause);
            }
            result => return result,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests;
