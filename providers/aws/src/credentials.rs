//! The instance's temporary credentials, from the metadata service.

use std::time::{Duration, SystemTime};

use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::Imds;
use kubelet_authenticator::secret::Secret;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::identity::NOT_AWS;
use crate::settings::AwsPrincipal;

/// The path of the instance identity role's credentials. Account policies cannot remove this role.
const IDENTITY_ROLE: &str = "meta-data/identity-credentials/ec2/security-credentials/ec2-instance";

/// The path of the instance profile's credentials. The name of the role follows.
const PROFILE: &str = "meta-data/iam/security-credentials/";

/// The minimum remaining validity of the credentials. In this time, the controller must process the request. The
/// metadata service provides new credentials five minutes before the current credentials expire.
const LEAST_LEFT: Duration = Duration::from_mins(2);

/// IAM's limit for a role name.
const MAX_ROLE_LEN: usize = 64;

/// Temporary credentials. `Debug` does not show secrets.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) access_key_id: Secret<String>,
    pub(crate) secret_access_key: Secret<String>,
    pub(crate) session_token: Secret<String>,
    expiration: SystemTime,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Wire {
    code: String,
    access_key_id: Zeroizing<String>,
    secret_access_key: Zeroizing<String>,
    token: Zeroizing<String>,
    expiration: String,
}

impl Credentials {
    /// Reads the credentials of `principal`. Makes one call to the metadata service, or two calls for an instance
    /// profile.
    pub(crate) fn read(
        imds: &Imds,
        principal: AwsPrincipal,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let path = match principal {
            AwsPrincipal::InstanceIdentityRole => IDENTITY_ROLE.to_owned(),
            AwsPrincipal::InstanceProfile => format!("{PROFILE}{}", role(imds, deadline)?),
        };
        Self::parse(&imds.read(&path, deadline)?)
    }

    fn parse(json: &str) -> Result<Self, Failure> {
        let invalid = |what: String| Failure::new(Code::EvidenceInvalid, what, NOT_AWS);
        let wire: Wire = serde_json::from_str(json).map_err(|error| {
            // The parser's error message can contain a part of a secret, so report only the position.
            invalid(format!(
                "invalid credentials from the instance metadata service (line {}, column {} of its JSON)",
                error.line(),
                error.column()
            ))
        })?;
        if wire.code != "Success" {
            let code: String = wire.code.chars().take(64).collect();
            return Err(Failure::new(
                Code::EvidenceUnavailable,
                format!("the instance metadata service returned {code:?} instead of credentials"),
                "allow ec2.amazonaws.com to assume the role of the instance profile, or set \
                 aws.principal to instanceIdentityRole",
            ));
        }
        let invalid_field = |field| {
            invalid(format!(
                "the {field} in the instance's credentials is invalid"
            ))
        };
        let expiration =
            humantime::parse_rfc3339(&wire.expiration).map_err(|_| invalid_field("Expiration"))?;
        if wire.secret_access_key.is_empty() {
            return Err(invalid_field("SecretAccessKey"));
        }
        let secret = |mut text: Zeroizing<String>| Secret::new(std::mem::take(&mut *text));
        Ok(Self {
            access_key_id: secret(wire.access_key_id),
            secret_access_key: secret(wire.secret_access_key),
            session_token: secret(wire.token),
            expiration,
        })
    }

    /// The expiry time of the credentials.
    pub(crate) fn end(&self) -> SystemTime {
        self.expiration
    }

    /// Returns these credentials if they remain valid long enough after `now` for a signature.
    pub(crate) fn lasting(self, now: SystemTime) -> Result<Self, Failure> {
        if now + LEAST_LEFT <= self.expiration {
            return Ok(self);
        }
        let [end, now] = [self.expiration, now].map(humantime::format_rfc3339_seconds);
        Err(Failure::new(
            Code::EvidenceUnavailable,
            format!(
                "the instance's credentials expire at {end}, too soon for a signature; the clock of this \
                 machine shows {now}"
            ),
            "wait for new credentials from the metadata service; if the failure persists, set the \
             clock of this machine with NTP",
        ))
    }
}

/// Reads the name of the instance profile's role.
fn role(imds: &Imds, deadline: Deadline) -> Result<String, Failure> {
    let list = imds.find(PROFILE, deadline)?;
    let role = list.as_ref().and_then(|list| list.lines().next());
    let Some(role) = role.filter(|role| !role.is_empty()) else {
        return Err(Failure::new(
            Code::EvidenceUnavailable,
            "the instance has no instance profile with a role",
            "attach an instance profile with a role, or set aws.principal to instanceIdentityRole, which does not \
             need an instance profile",
        ));
    };
    // The name becomes part of a path.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte);
    if role.len() > MAX_ROLE_LEN || !role.bytes().all(allowed) || role.starts_with('.') {
        let what =
            "the instance metadata service returned an invalid role name for the instance profile";
        return Err(Failure::new(Code::EvidenceInvalid, what, NOT_AWS));
    }
    Ok(role.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const JSON: &str = r#"{
  "Code" : "Success",
  "LastUpdated" : "2026-01-01T00:00:00Z",
  "Type" : "AWS-HMAC",
  "AccessKeyId" : "ASIA0123456789ABCDEF",
  "SecretAccessKey" : "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
  "Token" : "IQoJb3JpZ2luX2Vj+/=",
  "Expiration" : "2026-01-01T06:00:00Z"
}"#;

    /// Credentials that expire at 06:00 on 2026-01-01.
    pub(crate) fn credentials() -> Credentials {
        Credentials::parse(JSON).unwrap()
    }

    fn at(time: &str) -> SystemTime {
        humantime::parse_rfc3339(&format!("2026-01-01T{time}Z")).unwrap()
    }

    #[test]
    fn credentials_are_read_and_not_shown() {
        let credentials = credentials();

        assert_eq!(credentials.access_key_id.expose(), "ASIA0123456789ABCDEF");
        let shown = format!("{credentials:?}");
        for secret in ["ASIA", "wJalr", "IQoJ"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn credentials_that_expire_too_soon_are_refused_with_both_times() {
        assert!(credentials().lasting(at("05:58:00")).is_ok());

        for now in ["05:58:01", "07:00:00"] {
            let error = credentials().lasting(at(now)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "the instance's credentials expire at 2026-01-01T06:00:00Z, too soon for a signature; \
                     the clock of this machine shows 2026-01-01T{now}Z"
                )
            );
            assert_eq!(error.code(), Code::EvidenceUnavailable);
        }
    }

    #[test]
    fn invalid_credentials_are_reported_without_their_content() {
        let failed = JSON.replace("Success", "AssumeRoleUnauthorizedAccess");
        let no_key = JSON.replace("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "");
        let no_end = JSON.replace("2026-01-01T06:00:00Z", "soon");
        let no_text = JSON.replace("\"IQoJb3JpZ2luX2Vj+/=\"", "1234567890");
        for (json, words) in [
            (
                failed.as_str(),
                "returned \"AssumeRoleUnauthorizedAccess\" instead of credentials",
            ),
            (&no_key, "the SecretAccessKey in"),
            (&no_end, "the Expiration in"),
            (&no_text, "line 7, column"),
            ("<html>", "line 1, column 1"),
            ("{}", "returned \"\" instead of credentials"),
        ] {
            let error = Credentials::parse(json).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(words), "{shown}");
            assert!(!shown.contains("1234567890") && !shown.contains("ASIA"));
        }
    }
}
