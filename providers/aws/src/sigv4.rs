//! AWS Signature Version 4, for requests with the path `/`, no query and a signed body.
//!
//! Source: the IAM user guide, "Create a signed AWS API request".

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use kubelet_authenticator::secret::Secret;
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";

/// The length of the day at the beginning of a time, `YYYYMMDD`.
const DAY: usize = 8;

/// A request to sign.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// The headers, in lower case and sorted. The signature covers all headers.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    /// `YYYYMMDDTHHMMSSZ`
    pub(crate) amz_date: &'a str,
}

impl Request<'_> {
    /// The signature, in lower-case hexadecimal.
    pub(crate) fn sign(&self, secret_access_key: &Secret<String>) -> String {
        let day = self.amz_date.get(..DAY).unwrap_or_default();
        let scope = [day, self.region, self.service, TERMINATOR];
        let text = [
            ALGORITHM,
            self.amz_date,
            &scope.join("/"),
            &digest(&self.canonical()),
        ]
        .join("\n");
        let seed = Secret::new(format!("AWS4{}", secret_access_key.expose()).into_bytes());
        let key = scope.iter().fold(key(seed.expose()), |last, part| {
            key(mac(&last, part).as_ref())
        });
        HEXLOWER.encode(mac(&key, &text).as_ref())
    }

    /// The canonical request.
    fn canonical(&self) -> String {
        let (mut names, mut headers) = (Vec::new(), String::new());
        for (name, value) in self.headers {
            names.push(*name);
            headers.extend([*name, ":", *value, "\n"]);
        }
        [
            self.method,
            "/",
            "",
            &headers,
            &names.join(";"),
            &digest(self.body),
        ]
        .join("\n")
    }
}

fn digest(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

/// Returns the key for an HMAC. aws-lc-rs zeroizes the key on drop.
fn key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn mac(key: &hmac::Key, text: &str) -> hmac::Tag {
    hmac::sign(key, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE_HOST: (&str, &str) = ("host", "example.amazonaws.com");
    const EXAMPLE_DATE: (&str, &str) = ("x-amz-date", "20150830T123600Z");

    /// The session token in the STS cases in the test suite.
    const EXAMPLE_TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

    fn signed(method: &str, headers: &[(&str, &str)], body: &str) -> String {
        let request = Request {
            method,
            headers,
            body,
            region: "us-east-1",
            service: "service",
            amz_date: "20150830T123600Z",
        };
        request.sign(&Secret::new(
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
        ))
    }

    /// The cases and their names are from the AWS signing test suite.
    #[test]
    fn created_signatures_match_the_aws_test_suite() {
        let digest = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
        let form = [
            ("content-length", "13"),
            ("content-type", "application/x-www-form-urlencoded"),
            EXAMPLE_HOST,
            ("x-amz-content-sha256", digest),
            EXAMPLE_DATE,
        ];
        let token = [
            EXAMPLE_HOST,
            EXAMPLE_DATE,
            ("x-amz-security-token", EXAMPLE_TOKEN),
        ];
        let plain = [EXAMPLE_HOST, EXAMPLE_DATE];
        for (name, method, headers, body, expected) in [
            (
                "get-vanilla",
                "GET",
                &plain[..],
                "",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                "post-sts-header-after",
                "POST",
                &plain,
                "",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "post-sts-header-before",
                "POST",
                &token,
                "",
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
            ),
            (
                "post-x-www-form-urlencoded",
                "POST",
                &form,
                "Param1=value1",
                "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
            ),
        ] {
            assert_eq!(signed(method, headers, body), expected, "{name}");
        }
    }

    #[test]
    fn every_changed_part_of_a_request_changes_the_signature() {
        let valid = signed("POST", &[EXAMPLE_HOST, EXAMPLE_DATE], "a=b");

        for other in [
            signed("GET", &[EXAMPLE_HOST, EXAMPLE_DATE], "a=b"),
            signed("POST", &[("host", "example.test"), EXAMPLE_DATE], "a=b"),
            signed("POST", &[EXAMPLE_HOST], "a=b"),
            signed("POST", &[EXAMPLE_HOST, EXAMPLE_DATE], "a=c"),
        ] {
            assert_ne!(valid, other);
        }
    }
}
