//! AWS Signature Version 4, computed from a request's own bytes.
//!
//! "Create a signed AWS API request", <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{self, HMAC_SHA256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The parts of an `authorization` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authorization<'a> {
    pub(super) access_key_id: &'a str,
    pub(super) date: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
    pub(super) signed_headers: Vec<&'a str>,
    pub(super) signature: &'a str,
}

impl<'a> Authorization<'a> {
    /// Parses the header. Returns `None` if a part is missing or appears twice.
    pub(super) fn parse(header: &'a str) -> Option<Self> {
        let fields = header.strip_prefix(ALGORITHM)?.strip_prefix(' ')?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in fields.split(',') {
            let (name, value) = field.trim().split_once('=')?;
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        let scope: Vec<&str> = credential?.split('/').collect();
        let [access_key_id, date, region, service, "aws4_request"] = scope.as_slice() else {
            return None;
        };
        Some(Self {
            access_key_id,
            date,
            region,
            service,
            signed_headers: signed_headers?.split(';').collect(),
            signature: signature?,
        })
    }
}

/// An HTTP request, for which a signature is created or verified.
#[derive(Debug, Clone, Copy)]
pub struct Signing<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, normalized and encoded as in the request.
    pub path: &'a str,
    /// The query as sent.
    pub query: &'a str,
    /// The headers, with their names in lower case.
    pub headers: &'a [(String, String)],
    /// The names of the signed headers, sorted.
    pub signed_headers: &'a [&'a str],
    /// The body.
    pub body: &'a [u8],
    /// `x-amz-date`.
    pub time: &'a str,
    /// The region in the credential scope.
    pub region: &'a str,
    /// The service in the credential scope.
    pub service: &'a str,
}

impl Signing<'_> {
    /// The canonical request for the hash. `None` if a signed header is missing.
    pub(super) fn canonical_request(&self) -> Option<String> {
        let mut canonical = format!("{}\n{}\n{}\n", self.method, self.path, self.sorted_query());
        for name in self.signed_headers {
            let values: Vec<String> = self
                .headers
                .iter()
                .filter(|(header, _)| header == name)
                .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect();
            if values.is_empty() {
                return None;
            }
            let _ = writeln!(canonical, "{name}:{}", values.join(","));
        }
        let _ = write!(
            canonical,
            "\n{}\n{}",
            self.signed_headers.join(";"),
            hex(digest(&SHA256, self.body).as_ref())
        );
        Some(canonical)
    }

    fn sorted_query(&self) -> String {
        let mut pairs: Vec<&str> = self.query.split('&').filter(|p| !p.is_empty()).collect();
        pairs.sort_unstable();
        pairs.join("&")
    }

    fn day(&self) -> &str {
        self.time.get(..8).unwrap_or(self.time)
    }

    pub(super) fn string_to_sign(&self, canonical_request: &str) -> String {
        format!(
            "{ALGORITHM}\n{}\n{}/{}/{}/aws4_request\n{}",
            self.time,
            self.day(),
            self.region,
            self.service,
            hex(digest(&SHA256, canonical_request.as_bytes()).as_ref())
        )
    }

    pub(super) fn signature(&self, secret_access_key: &str, string_to_sign: &str) -> String {
        let first = format!("AWS4{secret_access_key}").into_bytes();
        let key = [self.day(), self.region, self.service, "aws4_request"]
            .iter()
            .fold(first, |key, part| mac(&key, part));
        hex(&mac(&key, string_to_sign))
    }
}

/// The signature of a request in hexadecimal, for tests that simulate the instance.
///
/// # Panics
///
/// Panics if a header in `signed_headers` is missing.
pub fn sign(request: &Signing<'_>, secret_access_key: &str) -> String {
    let canonical = request.canonical_request().expect("every signed header");
    request.signature(secret_access_key, &request.string_to_sign(&canonical))
}

fn mac(key: &[u8], message: &str) -> Vec<u8> {
    let key = hmac::Key::new(HMAC_SHA256, key);
    hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret of AWS's Signature Version 4 test suite.
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn header(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn verified_signatures_match_the_aws_test_suite() {
        let plain = [
            header("host", "example.amazonaws.com"),
            header("x-amz-date", "20150830T123600Z"),
        ];
        let get_vanilla = Signing {
            method: "GET",
            path: "/",
            query: "",
            headers: &plain,
            signed_headers: &["host", "x-amz-date"],
            body: b"",
            time: "20150830T123600Z",
            region: "us-east-1",
            service: "service",
        };
        assert_eq!(
            sign(&get_vanilla, SECRET),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        let post_vanilla = Signing {
            method: "POST",
            ..get_vanilla
        };
        assert_eq!(
            sign(&post_vanilla, SECRET),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
        let mut form = plain.to_vec();
        form.push(header("content-type", "application/x-www-form-urlencoded"));
        let post_form = Signing {
            method: "POST",
            headers: &form,
            signed_headers: &["content-type", "host", "x-amz-date"],
            body: b"Param1=value1",
            ..get_vanilla
        };
        assert_eq!(
            sign(&post_form, SECRET),
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
        );
    }

    #[test]
    fn an_authorization_with_a_missing_or_repeated_part_is_refused() {
        let valid = "AWS4-HMAC-SHA256 Credential=AKID/20150830/us-east-1/sts/aws4_request, \
                     SignedHeaders=host;x-amz-date, Signature=00";
        let parsed = Authorization::parse(valid).unwrap();
        assert_eq!(parsed.access_key_id, "AKID");
        assert_eq!(parsed.signed_headers, ["host", "x-amz-date"]);
        for other in [
            valid.replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512"),
            valid.replace("aws4_request", "aws5_request"),
            valid.replace("/sts", ""),
            format!("{valid}, Signature=01"),
            valid.replace(", Signature=00", ""),
        ] {
            assert_eq!(Authorization::parse(&other), None, "{other}");
        }
    }
}
