//! Tests that run the plugin against an API server that behaves as if the cluster's CA had been replaced.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_authenticator_test_support::api_server::{
    ApiServer, Fault, Route, Signer, TOKEN, Times, Verb, exec_info,
};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::attester::{Claim, ProviderIdSources};
use crate::exec::ExecInfo;
use crate::settings::{ProviderSchema, Sources};
use crate::store::StoreFile;

const BOOTSTRAP_USER: &str = "system:bootstrap:abcdef";

/// A provider that has no evidence, or whose evidence is only a header.
#[derive(Debug)]
struct Machines(Renewal);

impl Attester for Machines {
    fn provider(&self) -> Provider {
        match self.0 {
            Renewal::Attested => Provider::NULL,
            Renewal::Impossible => Provider::INSECURE,
        }
    }

    fn renewal(&self) -> Renewal {
        self.0
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        sources.configured()
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let header = Header {
            version: claim.version.clone(),
            audience: claim.audience.clone(),
        };
        Ok((self.0 == Renewal::Attested).then(|| header.to_json()))
    }
}

/// A node, and the API server of its cluster.
struct Bed {
    server: ApiServer,
    folder: TempDir,
    renewal: Renewal,
    /// A new CA, which the kubelet's kubeconfig also trusts.
    new_ca: String,
    /// The time limit of a run.
    limit: Duration,
}

impl Bed {
    /// Creates a node that has a certificate.
    fn joined(renewal: Renewal) -> (Self, Credential) {
        let bed = Self {
            server: ApiServer::start(),
            folder: tempfile::tempdir().unwrap(),
            renewal,
            new_ca: String::new(),
            limit: Duration::from_secs(20),
        };
        bed.server.set_signer(Signer::issue());
        bed.server
            .write_bootstrap_kubeconfig(bed.folder.path(), TOKEN);
        let state = bed.folder.path().join("state");
        let bootstrap = bed.folder.path().join("bootstrap.kubeconfig");
        let config = json!({
            "apiVersion": "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthenticatorConfiguration",
            "nodeName": "n1",
            "providerID": "test:///machine-1",
            "stateDirectory": state,
            "bootstrapKubeconfig": bootstrap,
        });
        fs::write(bed.config(), config.to_string()).unwrap();
        let joined = bed.run().unwrap();
        (bed, joined)
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    fn store(&self) -> Store {
        let state = self.folder.path().join("state");
        Store::open(&state).unwrap().unwrap()
    }

    /// Runs the plugin as client-go does, and returns the result.
    fn run(&self) -> Result<Credential, Failure> {
        self.with(Caller::ClientGo, |it| Ok(it.credential()?.credential))
    }

    /// Runs `renew`, and returns the result.
    fn renew(&self) -> Result<Credential, Failure> {
        self.with(Caller::Person, |it| Ok(it.renew(false)?.0.credential))
    }

    fn with<T>(&self, caller: Caller, run: impl FnOnce(&Authenticator<'_>) -> T) -> T {
        let attester: Arc<dyn Attester> = Arc::new(Machines(self.renewal));
        let schema = ProviderSchema {
            provider: attester.provider(),
            settings: attester.settings(),
            expiration_seconds: attester.expiration_seconds(),
        };
        let config = self.config();
        let sources = Sources {
            config: Some(&config),
            time_limit: Some(self.limit),
            ..Sources::default()
        };
        let bundle = format!("{}{}", self.server.ca_pem(), self.new_ca);
        let cluster = json!({
            "server": self.server.url(),
            "certificate-authority-data": STANDARD.encode(bundle),
        });
        let text = exec_info("v1", Some(cluster));
        let info = ExecInfo::parse(text.as_ref()).unwrap();
        run(&Authenticator {
            attester,
            settings: Settings::load(sources, &schema).unwrap(),
            fault: None,
            cluster: info.cluster.as_ref().map(Cluster::Exec),
            machine: Machine::rooted(self.folder.path()),
            caller,
            rescue: Rescue::idle(),
            log: Log::default(),
            observer: None,
        })
    }

    /// Runs the plugin two minutes later, while the API server returns this status to requests with the stored
    /// certificate.
    fn refused(&self, status: u16) -> Credential {
        self.refuse(status);
        self.again()
    }

    /// Makes the API server return this status to requests with the stored certificate from now on. If the status is
    /// 403, it returns the message for revoked certificates.
    fn refuse(&self, status: u16) {
        self.refuse_because(status, "the credential 1 of system:node:n1 is revoked");
    }

    fn refuse_because(&self, code: u16, message: &str) {
        self.server.clear_faults();
        let lease = Route::new(Verb::Patch, "leases");
        let body = json!({"kind": "Status", "code": code, "message": message}).to_string();
        let fault = Fault::Answer {
            code,
            content_type: "application/json".into(),
            body: body.into_bytes(),
        };
        self.server.inject(lease, Times::always(), fault);
    }

    /// The number of times that a certificate was checked.
    fn tries(&self) -> usize {
        let mut requests = self.server.requests();
        requests.retain(|request| request.verb == Verb::Patch);
        requests.len()
    }

    fn origin(&self) -> Origin {
        Origin::read(&self.store()).unwrap()
    }

    fn save(&self, origin: &Origin) {
        let deadline = Deadline::after(Duration::from_secs(20));
        let lock = self.store().lock(deadline, "test", clock::now()).unwrap();
        origin.save(&lock).unwrap();
    }

    /// Runs the plugin two minutes later, and returns the result.
    fn again(&self) -> Credential {
        self.store().forget_last_check();
        self.run().unwrap()
    }

    /// Makes the controller stop deciding on requests, and gives runs a short time limit.
    fn nobody_decides(&mut self) {
        self.server.set_signer(Signer::Off);
        self.limit = Duration::from_secs(5);
    }

    /// Makes the controller deny the next request for this reason.
    fn deny_next(&self, reason: &str) {
        let condition = json!({
            "type": "Denied", "status": "True", "reason": reason, "message": "the record says so",
        });
        let status = json!({"certificate": null, "conditions": [condition]});
        let patch = json!({"status": status});
        self.server
            .inject(Route::create(), Times::once(), Fault::Merge { patch });
    }

    /// The users that created the requests after the first request.
    fn requesters(&self) -> Vec<String> {
        let mut requests = self.server.requests();
        requests.retain(|request| request.verb == Verb::Create);
        let users = requests.into_iter().skip(1);
        users.filter_map(|request| request.user).collect()
    }
}

#[test]
fn a_machine_without_evidence_reuses_its_key_after_a_401() {
    let (bed, old) = Bed::joined(Renewal::Impossible);

    let new = bed.refused(401);

    assert_ne!(new.certificate_pem(), old.certificate_pem());
    assert_eq!(new.public_bits(), old.public_bits());
    assert_eq!(bed.requesters(), [BOOTSTRAP_USER]);
    assert!(!bed.store().path(StoreFile::Pending).exists());
}

#[test]
fn a_machine_with_evidence_creates_a_new_key_after_a_401() {
    let (bed, old) = Bed::joined(Renewal::Attested);
    bed.refuse(401);
    bed.server
        .inject(Route::create(), Times::once(), Fault::status(401));

    let new = bed.again();

    assert_ne!(new.public_bits(), old.public_bits());
    assert_eq!(bed.requesters(), [BOOTSTRAP_USER]);
}

#[test]
fn a_machine_without_evidence_creates_a_new_key_after_a_403() {
    let (bed, old) = Bed::joined(Renewal::Impossible);

    let new = bed.refused(403);

    assert_ne!(new.public_bits(), old.public_bits());
    assert_eq!(bed.requesters(), [BOOTSTRAP_USER]);
}

/// A message from an admission policy that an administrator has created.
const NO_LEASES: &str = "this field manager is not allowed";

#[test]
fn a_persistent_403_causes_one_renewal_a_day() {
    let (bed, old) = Bed::joined(Renewal::Attested);
    bed.refuse_because(403, NO_LEASES);

    let new = bed.again();
    assert_ne!(new.certificate_pem(), old.certificate_pem());
    let tries = bed.tries();
    for more in 1..=3 {
        let kept = bed.again();
        assert_eq!(kept.certificate_pem(), new.certificate_pem());
        assert_eq!(bed.tries(), tries + more, "the check continues");
    }
    assert_eq!(bed.requesters().len(), 1);

    // One day later.
    let mut origin = bed.origin();
    origin.refused_again = origin.refused_again.map(|since| since - 24 * 3600);
    bed.save(&origin);
    let next = bed.again();
    assert_ne!(next.certificate_pem(), new.certificate_pem());
    assert_eq!(bed.requesters().len(), 2);
    assert_eq!(bed.again().certificate_pem(), next.certificate_pem());
}

#[test]
fn an_accepted_certificate_ends_the_renewal_pause() {
    let (bed, _) = Bed::joined(Renewal::Attested);
    bed.refuse_because(403, NO_LEASES);
    let new = bed.again();
    assert!(bed.origin().refused_again.is_some());

    bed.server.clear_faults();
    let kept = bed.again();
    assert_eq!(kept.certificate_pem(), new.certificate_pem());
    assert_eq!(bed.origin().refused_again, None);

    bed.refuse(403);
    assert_ne!(bed.again().certificate_pem(), new.certificate_pem());
}

#[test]
fn a_renewal_that_ends_a_403_causes_no_pause() {
    let (bed, old) = Bed::joined(Renewal::Attested);
    bed.server.clear_faults();
    let lease = Route::new(Verb::Patch, "leases");
    bed.server.inject(lease, Times::once(), Fault::status(403));

    assert_ne!(bed.again().certificate_pem(), old.certificate_pem());

    assert_eq!(bed.origin().refused_again, None);
}

#[test]
fn a_manual_renewal_ignores_the_pause() {
    let (bed, _) = Bed::joined(Renewal::Attested);
    bed.refuse_because(403, NO_LEASES);
    let new = bed.again();

    let renewed = bed.renew().unwrap();

    assert_ne!(renewed.certificate_pem(), new.certificate_pem());
}

#[test]
fn an_insecure_machine_claims_its_name_again_only_after_a_revocation() {
    let (bed, old) = Bed::joined(Renewal::Impossible);
    bed.refuse_because(403, NO_LEASES);

    for tries in 1..=2 {
        assert_eq!(bed.again().certificate_pem(), old.certificate_pem());
        assert_eq!(bed.tries(), tries);
    }
    assert_eq!(bed.requesters(), [""; 0]);

    bed.refuse(403);
    assert_ne!(bed.again().certificate_pem(), old.certificate_pem());
}

#[test]
fn a_revoked_stored_key_is_replaced() {
    for reason in ["IdentityRevoked", "KeyOfAnotherMachine"] {
        let (mut bed, old) = Bed::joined(Renewal::Impossible);
        bed.nobody_decides();
        bed.refuse(401);
        bed.deny_next(reason);
        // The API server has received the request with the new key, and the controller does not decide on it.
        let waits = bed.again();
        let requests = bed.server.created_bodies().len();
        let still_waits = bed.again();
        assert_eq!(bed.server.created_bodies().len(), requests, "{reason}");
        for waits in [waits, still_waits] {
            assert_eq!(waits.certificate_pem(), old.certificate_pem(), "{reason}");
        }

        let name = pending_name(&bed);
        bed.server.approve_and_issue(&name);
        // With a longer time limit, the run receives the certificate.
        bed.limit = Duration::from_mins(1);
        let new = bed.again();

        assert_ne!(new.public_bits(), old.public_bits(), "{reason}");
        assert_eq!(bed.requesters(), [BOOTSTRAP_USER; 2], "{reason}");
    }
}

#[test]
fn a_stored_key_that_is_denied_for_another_reason_is_kept() {
    let (bed, old) = Bed::joined(Renewal::Impossible);
    bed.refuse(401);
    bed.deny_next("TokenOfAnotherMachine");
    let denied = bed.again();
    assert_eq!(denied.certificate_pem(), old.certificate_pem());
    // The node has a new token, and the pause after the denial has ended.
    let store = bed.store();
    let lock = store.lock(
        Deadline::after(Duration::from_secs(20)),
        "a test",
        clock::now(),
    );
    drop(lock.unwrap().remove(StoreFile::Failure));

    let new = bed.again();

    assert_ne!(new.certificate_pem(), old.certificate_pem());
    assert_eq!(new.public_bits(), old.public_bits());
}

#[test]
fn a_request_with_the_stored_key_is_created_once_across_runs() {
    let (mut bed, old) = Bed::joined(Renewal::Impossible);
    bed.nobody_decides();
    let waits = bed.refused(401);
    let name = pending_name(&bed);
    assert_eq!(waits.certificate_pem(), old.certificate_pem());
    bed.server.approve_and_issue(&name);

    let new = bed.again();

    assert_ne!(new.certificate_pem(), old.certificate_pem());
    assert_eq!(new.public_bits(), old.public_bits());
    assert_eq!(bed.requesters(), [BOOTSTRAP_USER]);
}

#[test]
fn the_stored_key_replaces_a_waiting_key_after_a_401() {
    let (mut bed, old) = Bed::joined(Renewal::Impossible);
    bed.nobody_decides();
    // The request has a new key, and the controller does not approve it before the certificate expires.
    let waits = bed.refused(403);
    let other = pending_name(&bed);
    assert_eq!(waits.certificate_pem(), old.certificate_pem());
    bed.server.set_signer(Signer::issue());

    let new = bed.refused(401);

    assert_eq!(new.public_bits(), old.public_bits());
    assert!(
        bed.server
            .csr(&other)
            .is_some_and(|request| { request["status"]["certificate"].is_null() })
    );
}

#[test]
fn a_request_with_the_stored_key_is_kept_when_the_kubeconfig_has_a_new_ca() {
    let (mut bed, old) = Bed::joined(Renewal::Impossible);
    bed.nobody_decides();
    bed.refuse(401);
    bed.new_ca = CertificateAuthority::new("new")
        .certificate_pem()
        .to_owned();

    for _ in 0..2 {
        let undecided = bed.renew().unwrap_err();
        assert_eq!(undecided.code(), Code::Pending, "{undecided}");
    }
    bed.server.approve_and_issue(&pending_name(&bed));
    let new = bed.renew().unwrap();

    assert_eq!(new.public_bits(), old.public_bits());
    assert_eq!(bed.requesters(), [BOOTSTRAP_USER]);
    let stored = Origin::read(&bed.store()).unwrap();
    assert!(stored.endpoint.ca_pem.ends_with(&bed.new_ca));
}

/// The name of the node's pending request.
fn pending_name(bed: &Bed) -> String {
    let text = fs::read_to_string(bed.store().path(StoreFile::Pending)).unwrap();
    let pending: serde_json::Value = serde_json::from_str(&text).unwrap();
    pending["request"]["name"].as_str().unwrap().to_owned()
}
