//! The pending request: saved before it is sent, and sent again byte for byte.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::contract::REQUEST_ABANDONED_AFTER;
use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::backoff::FailureScope;
use crate::clock::{self, CLOCK_LEEWAY};
use crate::failure::{Failure, Invalid};
use crate::key::PrivateKey;
use crate::kube::NewCsr;
use crate::machine::MachineDigest;
use crate::secret::Secret;
use crate::store::{StoreFile, StoreLock};

const VERSION: u32 = 1;

/// The maximum age of an undecided request while a certificate is valid. Kubernetes deletes pending requests after 24
/// hours, so a node has at most three pending requests, even during a long outage of the controller. After the outage,
/// the controller fails a request whose evidence is too old, and the next run creates another request.
const MAX_AGE_WITH_CERTIFICATE: Duration = Duration::from_hours(9);

/// `pending.json`: the key, and the open request that uses it, if any.
///
/// The key is kept after a request fails. A second request with the same key is a retry, but a request with a new key
/// would be a second claim.
#[derive(Debug)]
pub struct Pending {
    /// The key.
    pub key: PrivateKey,
    /// The machine that generated the key. The key is not used on any other machine.
    pub machine: MachineDigest,
    /// A digest of the CA certificates of the cluster to which the run sends the request.
    pub ca: Option<String>,
    /// The request.
    pub request: Option<OpenRequest>,
    /// Whether this key replaces the key of the stored certificate, because the controller denied that key.
    pub replaces_denied: bool,
}

/// A request, before or after it is sent.
#[derive(derive_more::Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
// Omits the bytes, because evidence can contain a session token.
#[debug("OpenRequest({name}, {created})")]
#[serde(rename_all = "camelCase")]
pub struct OpenRequest {
    /// The name of the object, derived from the bytes.
    pub name: String,
    /// The bytes of `spec.request`.
    #[serde(with = "base64_text")]
    pub bytes: Vec<u8>,
    /// The content of the request.
    #[serde(flatten)]
    pub subject: Subject,
    /// The time of the request, in seconds since 1970.
    pub created: u64,
    /// Whether the API server has acknowledged the request.
    pub acknowledged: bool,
    /// Whether the request answers a challenge. The field is omitted from the file if it is false, so that releases
    /// without challenges can read the file.
    #[serde(default, skip_serializing_if = "<&bool as std::ops::Not>::not")]
    pub answers: bool,
    /// The scope in which a run last queried the machine for its provider ID; `None` if the provider ID has another
    /// source. If the scope is `None`, its fields are omitted, so that releases without the provider `tpm` can read the
    /// file.
    #[serde(flatten)]
    pub asked: Option<FailureScope>,
}

/// All values that determine the content of a request, except its key. If one of them changes, a new request is
/// necessary.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// The name of the signer.
    pub signer_name: String,
    /// The requested lifetime.
    pub expiration_seconds: u32,
    /// The node.
    pub node_name: NodeName,
    /// The machine.
    #[serde(rename = "providerID")]
    pub provider_id: ProviderId,
    /// The cluster for which the evidence was created.
    pub audience: Audience,
}

/// The fields of the file. Unknown fields are ignored, because a later release can add fields, and because this release
/// must not lose the node's key after a rollback.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    version: u32,
    key: Zeroizing<String>,
    machine: Option<MachineDigest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    request: Option<Value>,
    /// The field is omitted from the file if it is false, so that earlier releases can read the file.
    #[serde(default, skip_serializing_if = "<&bool as std::ops::Not>::not")]
    replaces_denied: bool,
}

impl Pending {
    /// A new key of this machine, without a request.
    pub fn of_key(key: PrivateKey, machine: MachineDigest) -> Self {
        Self {
            key,
            machine,
            ca: None,
            request: None,
            replaces_denied: false,
        }
    }

    /// Writes the pending request into the store.
    pub(crate) fn save(&self, store: &StoreLock) -> Result<(), Failure> {
        store.replace(StoreFile::Pending, &self.to_json())
    }

    /// Removes the request from the store, and keeps the key.
    pub(crate) fn drop_request(&mut self, store: &StoreLock) -> Result<(), Failure> {
        self.request = None;
        self.save(store)
    }

    /// Parses the file's content. A request that this release cannot parse is dropped, because a later release might
    /// have written it; the key is kept.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut wire: Wire = serde_json::from_str(text).map_err(|error| {
            // Omit the parser's error, because it could contain a part of the key.
            let (line, column) = (error.line(), error.column());
            Invalid::new(format!(
                "it is not in the JSON format of this release (line {line}, column {column})"
            ))
        })?;
        if wire.version < VERSION {
            return Err(Invalid::format(wire.version, VERSION));
        }
        let key = Secret::new(std::mem::take(&mut *wire.key));
        Ok(Self {
            key: PrivateKey::from_pem(key)
                .and_then(PrivateKey::checked)
                .map_err(|error| error.within("its key is invalid"))?,
            machine: wire
                .machine
                .ok_or_else(|| Invalid::new("it does not contain the machine's identity"))?,
            ca: wire.ca,
            request: wire
                .request
                .and_then(|request| serde_json::from_value(request).ok()),
            replaces_denied: wire.replaces_denied,
        })
    }

    /// The file's content.
    pub fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let wire = Wire {
            version: VERSION,
            key: Zeroizing::new(self.key.pem().expose().clone()),
            machine: Some(self.machine.clone()),
            ca: self.ca.clone(),
            request: self
                .request
                .as_ref()
                .and_then(|open| serde_json::to_value(open).ok()),
            replaces_denied: self.replaces_denied,
        };
        // Allocate the buffer in advance, because a growing buffer would leave copies of the key in memory.
        let request = self.request.as_ref().map_or(0, |open| open.bytes.len());
        let mut json = Zeroizing::new(Vec::with_capacity(8 * 1024 + 2 * request));
        if serde_json::to_writer(&mut *json, &wire).is_err() {
            json.clear();
        }
        json
    }
}

impl OpenRequest {
    /// A request that was created at `now`, and was not sent yet.
    pub fn new(name: String, bytes: Vec<u8>, subject: Subject, now: SystemTime) -> Self {
        Self {
            name,
            bytes,
            subject,
            created: clock::unix_seconds(now),
            acknowledged: false,
            answers: false,
            asked: None,
        }
    }

    /// The request, for the API server.
    pub(crate) fn to_csr(&self) -> NewCsr<'_> {
        NewCsr {
            name: &self.name,
            signer_name: &self.subject.signer_name,
            usages: &CLIENT_USAGES,
            expiration_seconds: self.subject.expiration_seconds,
            request: &self.bytes,
        }
    }

    /// Returns the provider ID, if a new query would return the same provider ID. A new query returns the same provider
    /// ID only in the same boot and with the same settings. A copy of the store on a different machine has a different
    /// boot ID.
    pub fn known_provider_id(&self, scope: &FailureScope, now: SystemTime) -> Option<&ProviderId> {
        let same = scope.boot_id.is_some() && self.asked.as_ref() == Some(scope);
        (same && self.is_younger(REQUEST_ABANDONED_AFTER, now)).then_some(&self.subject.provider_id)
    }

    /// Whether the request still matches `subject`, and is young enough. `lifetime` is the lifetime of the stored
    /// certificate, if that certificate is valid and accepted.
    ///
    /// If the time of a request is in the future, the request and its evidence were created with a wrong clock.
    pub fn is_worth_taking_up(
        &self,
        subject: &Subject,
        lifetime: Option<Duration>,
        now: SystemTime,
    ) -> bool {
        // A short-lived certificate must not expire because the controller missed a request.
        let max_age = lifetime.map_or(REQUEST_ABANDONED_AFTER, |lifetime| {
            (lifetime / 4).clamp(REQUEST_ABANDONED_AFTER, MAX_AGE_WITH_CERTIFICATE)
        });
        self.is_younger(max_age, now) && self.subject == *subject
    }

    fn is_younger(&self, max_age: Duration, now: SystemTime) -> bool {
        // The number is far below the maximum of `SystemTime`, so the addition cannot overflow.
        let created = UNIX_EPOCH + Duration::from_secs(self.created.min(u32::MAX.into()));
        now < created + max_age && created <= now + CLOCK_LEEWAY
    }
}

mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(json: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(json)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(500_000)
    }

    fn subject() -> Subject {
        Subject {
            signer_name: "a.b/c".to_owned(),
            expiration_seconds: 3600,
            node_name: NodeName::parse("n1").unwrap(),
            provider_id: ProviderId::parse("aws:///a/i-1").unwrap(),
            audience: Audience::parse("prod").unwrap(),
        }
    }

    fn open() -> OpenRequest {
        OpenRequest::new("name".to_owned(), b"request".to_vec(), subject(), now())
    }

    #[test]
    fn debug_output_does_not_contain_the_bytes_of_a_request() {
        let debug = format!("{:?}", open());
        assert!(debug.contains("name"), "{debug}");
        assert!(!debug.contains("114, 101"), "{debug}");
    }

    fn scope_of(boot: Option<&str>, settings: &str) -> FailureScope {
        FailureScope {
            boot_id: boot.map(str::to_owned),
            settings: settings.to_owned(),
        }
    }

    fn scope() -> FailureScope {
        scope_of(Some("boot"), "settings")
    }

    fn new_pending() -> Pending {
        Pending::of_key(PrivateKey::generate().unwrap(), MachineDigest::default())
    }

    fn json(pending: &Pending) -> String {
        String::from_utf8(pending.to_json().to_vec()).unwrap()
    }

    #[test]
    fn the_key_and_the_request_are_unchanged_after_a_round_trip() {
        let mut pending = new_pending();
        let mut answer = open();
        answer.answers = true;
        answer.asked = Some(scope());
        for request in [None, Some(open()), Some(answer)] {
            pending.request = request;

            let read = Pending::parse(&json(&pending)).unwrap();

            assert_eq!(read.key.public_bits(), pending.key.public_bits());
            assert_eq!(read.request, pending.request);
            assert!(!read.replaces_denied);
        }
        pending.replaces_denied = true;
        assert!(Pending::parse(&json(&pending)).unwrap().replaces_denied);
    }

    #[test]
    fn a_request_without_challenge_has_the_old_file_format() {
        let mut pending = new_pending();
        pending.request = Some(open());

        for field in ["answers", "bootId", "settings", "\"ca\"", "replaces"] {
            assert!(!json(&pending).contains(field), "{field}");
        }
        assert!(
            !Pending::parse(&json(&pending))
                .unwrap()
                .request
                .unwrap()
                .answers
        );
    }

    #[test]
    fn a_pending_request_is_resumed_for_10_minutes() {
        let after = |seconds| now() + Duration::from_secs(seconds);

        let is_taken_up = |now| open().is_worth_taking_up(&subject(), None, now);
        assert!(is_taken_up(now()));
        assert!(is_taken_up(after(599)));
        assert!(!is_taken_up(after(600)));
        assert!(is_taken_up(now() - Duration::from_mins(5)));
        assert!(!is_taken_up(now() - Duration::from_secs(301)));
    }

    #[test]
    fn a_node_with_a_certificate_has_at_most_three_open_requests() {
        let hour = Duration::from_hours(1);
        let requests_in_a_day = |lifetime| {
            let mut made = vec![open()];
            let mut most = 0;
            // The loop simulates six of the seven days for which a certificate is valid.
            for minute in 0..6 * 24 * 60 {
                let now = now() + Duration::from_mins(minute);
                let last = made.last().unwrap();
                if !last.is_worth_taking_up(&subject(), lifetime, now) {
                    made.push(OpenRequest::new("n".to_owned(), Vec::new(), subject(), now));
                }
                made.retain(|request| request.is_younger(24 * hour, now));
                most = most.max(made.len());
            }
            most
        };

        assert_eq!(requests_in_a_day(Some(7 * 24 * hour)), 3);
        assert_eq!(requests_in_a_day(Some(36 * hour)), 3);
        assert_eq!(requests_in_a_day(None), 144);
    }

    #[test]
    fn a_request_for_a_short_lived_certificate_is_replaced_in_time() {
        let is_taken_up = |minutes, lifetime| {
            let now = now() + Duration::from_mins(minutes);
            open().is_worth_taking_up(&subject(), Some(Duration::from_mins(lifetime)), now)
        };

        assert!(is_taken_up(14, 60) && !is_taken_up(15, 60));
        assert!(is_taken_up(9, 10) && !is_taken_up(10, 10));
    }

    #[test]
    fn a_provider_id_is_reused_only_within_its_boot_and_settings() {
        let same = scope();
        let mut asked = open();
        asked.asked = Some(same.clone());
        let late = now() + REQUEST_ABANDONED_AFTER;
        let other_boot = scope_of(Some("other"), "settings");
        let other_settings = scope_of(Some("boot"), "other");
        let unknown_boot = scope_of(None, "settings");

        assert_eq!(
            asked.known_provider_id(&same, now()),
            Some(&subject().provider_id)
        );
        assert_eq!(asked.known_provider_id(&same, late), None);
        assert_eq!(asked.known_provider_id(&other_boot, now()), None);
        assert_eq!(asked.known_provider_id(&other_settings, now()), None);
        assert_eq!(open().known_provider_id(&same, now()), None);
        asked.asked = Some(unknown_boot.clone());
        assert_eq!(asked.known_provider_id(&unknown_boot, now()), None);
    }

    #[test]
    fn a_pending_request_with_another_subject_is_not_resumed() {
        let changes: [fn(&mut Subject); 5] = [
            |subject| subject.signer_name.push('x'),
            |subject| subject.expiration_seconds += 1,
            |subject| subject.node_name = NodeName::parse("n2").unwrap(),
            |subject| subject.provider_id = ProviderId::parse("aws:///a/i-2").unwrap(),
            |subject| subject.audience = Audience::parse("test").unwrap(),
        ];
        for change in changes {
            let mut other = subject();
            change(&mut other);
            assert!(!open().is_worth_taking_up(&other, None, now()), "{other:?}");
        }
    }

    #[test]
    fn a_pending_file_without_a_machine_is_refused() {
        let pending = new_pending();
        let json = json(&pending).replace("\"machine\":{},", "");

        let error = Pending::parse(&json).unwrap_err().to_string();
        assert_eq!(error, "it does not contain the machine's identity");
    }

    #[test]
    fn an_unreadable_request_is_dropped_and_its_key_is_kept() {
        let mut pending = new_pending();
        pending.request = Some(open());
        let text = json(&pending);
        for (from, to) in [
            ("\"n1\"", "\"N1\""),
            ("\"audience\"", "\"audiences\""),
            ("\"created\":", "\"created\":\"later\",\"x\":"),
            ("\"request\":{", "\"request\":[],\"x\":{"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);

            let read = Pending::parse(&changed).unwrap();

            assert_eq!(read.request, None, "{from}");
            assert_eq!(read.key.public_bits(), pending.key.public_bits());
        }
    }

    #[test]
    fn pending_fields_from_a_later_release_are_ignored() {
        let mut pending = new_pending();
        pending.request = Some(open());
        let text = json(&pending);
        for (from, to) in [
            ("\"version\":1", "\"version\":1,\"later\":[1]"),
            ("\"version\":1", "\"version\":2"),
            ("\"created\"", "\"later\":{},\"created\""),
            ("\"machine\":{", "\"machine\":{\"later\":\"x\""),
        ] {
            let later = text.replace(from, to);
            assert_ne!(later, text);

            let read = Pending::parse(&later).unwrap();

            assert_eq!(read.request, pending.request, "{later}");
            assert_eq!(read.key.public_bits(), pending.key.public_bits());
        }
    }

    #[test]
    fn an_invalid_pending_file_is_refused_without_showing_the_key() {
        let mut pending = new_pending();
        pending.request = Some(open());
        let json = json(&pending);
        let changed = |from: &str, to: &str| Pending::parse(&json.replace(from, to)).unwrap_err();

        for (from, to, words) in [
            ("\"version\":1", "\"version\":0", "it has format 0"),
            ("BEGIN", "BEGUN", "its key is invalid"),
            ("}}", "}", "it is not in the JSON format"),
            (
                "\"key\":\"",
                "\"key\":7,\"x\":\"",
                "it is not in the JSON format",
            ),
        ] {
            let error = changed(from, to).to_string();
            assert!(error.starts_with(words), "{error}");
            assert!(!error.contains("PRIVATE"), "{error}");
        }
    }
}
