//! Credentials and their owners.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::clock::now;

/// The characters that an access key ID can contain.
const ID_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The identity of a caller, in the fields of `GetCallerIdentity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The field `Arn`.
    pub arn: String,
    /// The field `UserId`.
    pub user_id: String,
    /// The field `Account`.
    pub account: String,
}

impl Principal {
    /// An instance that uses its instance identity role. The credentials of this role are available only from instance
    /// metadata.
    pub fn instance(account: &str, instance: &str) -> Self {
        Self {
            arn: format!("arn:aws:sts::{account}:assumed-role/aws:ec2-instance/{instance}"),
            user_id: format!("{account}:aws:ec2-instance:{instance}"),
            account: account.into(),
        }
    }

    /// An instance that uses the role in its instance profile.
    pub fn instance_profile(account: &str, role: &str, instance: &str) -> Self {
        Self::session(account, role, instance)
    }

    /// The session of an assumed role, with a session name that the caller chose.
    pub fn session(account: &str, role: &str, session: &str) -> Self {
        Self {
            arn: format!("arn:aws:sts::{account}:assumed-role/{role}/{session}"),
            user_id: format!("AROAEXAMPLEROLEID0001:{session}"),
            account: account.into(),
        }
    }

    /// A user with temporary credentials (`GetSessionToken`).
    pub fn user(account: &str, name: &str) -> Self {
        Self {
            arn: format!("arn:aws:iam::{account}:user/{name}"),
            user_id: "AIDAEXAMPLEUSERID0001".into(),
            account: account.into(),
        }
    }

    /// The same principal in another partition.
    pub fn in_partition(mut self, partition: &str) -> Self {
        self.arn = self
            .arn
            .replacen("arn:aws:", &format!("arn:{partition}:"), 1);
        self
    }
}

/// Temporary credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key ID: `ASIA` and sixteen characters.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token.
    pub session_token: String,
    /// The expiry time of the credentials.
    pub expiration: SystemTime,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("expiration", &self.expiration)
            .finish_non_exhaustive()
    }
}

/// All credentials, keyed by access key ID.
#[derive(Debug, Default)]
pub(super) struct Issued(HashMap<String, (Credentials, Principal)>);

impl Issued {
    pub(super) fn issue(&mut self, principal: Principal, expiration: SystemTime) -> Credentials {
        let id: String = random::<16>()
            .map(|byte| char::from(ID_ALPHABET[usize::from(byte) % ID_ALPHABET.len()]))
            .iter()
            .collect();
        let credentials = Credentials {
            access_key_id: format!("ASIA{id}"),
            secret_access_key: BASE64_STANDARD.encode(random::<30>()),
            session_token: BASE64_STANDARD.encode(random::<320>()),
            expiration,
        };
        self.0.insert(
            credentials.access_key_id.clone(),
            (credentials.clone(), principal),
        );
        credentials
    }

    /// Issues credentials as [`issue`](Self::issue) does, but with an access key ID that contains the account, so that
    /// the simulated EC2 accepts them.
    pub(super) fn issue_of(
        &mut self,
        principal: &Principal,
        expiration: SystemTime,
    ) -> Credentials {
        let mut credentials = self.issue(principal.clone(), expiration);
        self.0.remove(&credentials.access_key_id);
        let id = &credentials.access_key_id[4..8];
        credentials.access_key_id = format!("ASIA{}{id}", principal.account);
        let entry = (credentials.clone(), principal.clone());
        self.0.insert(credentials.access_key_id.clone(), entry);
        credentials
    }

    /// Adds a long-lived access key.
    #[track_caller]
    pub(super) fn learn(&mut self, principal: Principal, id: &str, secret: &str) {
        let credentials = Credentials {
            access_key_id: id.to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: String::new(),
            // Timestamps have a four-digit year, so the expiry time is long before the year 10000.
            expiration: now() + std::time::Duration::from_hours(24 * 365 * 50),
        };
        let before = self.0.insert(id.to_owned(), (credentials, principal));
        if let Some((_, before)) = before {
            let now = &self.0[id].1;
            assert_eq!(before, *now, "access key {id} belongs to another");
        }
    }

    pub(super) fn find(&self, access_key_id: &str) -> Option<&(Credentials, Principal)> {
        self.0.get(access_key_id)
    }
}

fn random<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_replaces_the_secret_of_an_access_key() {
        let mut issued = Issued::default();
        for secret in ["a", "b"] {
            issued.learn(Principal::user("200000000001", "one"), "AKIA", secret);
        }
        assert_eq!(issued.find("AKIA").unwrap().0.secret_access_key, "b");
    }

    #[test]
    #[should_panic(expected = "access key AKIA belongs to another")]
    fn an_access_key_cannot_change_its_user() {
        let mut issued = Issued::default();
        for user in ["one", "another"] {
            issued.learn(Principal::user("200000000001", user), "AKIA", "a");
        }
    }
}
