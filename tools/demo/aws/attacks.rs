//! Attacks by an attacker who has everything except the instance.

use std::time::Duration;

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::sts::Principal;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Parts};
use kubelet_authenticator_tests::controller::Application;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{AWS, World};
use crate::attacker::{Attacker, Verdict};
use crate::attacks::LEAKED;

/// A time that is longer than the maximum age of evidence.
const LONG_AGO: Duration = Duration::from_mins(20);

/// An attack with the victim's bootstrap token.
pub struct Attack {
    /// A short description.
    pub what: &'static str,
    /// The type of the condition in the refusal.
    pub kind: &'static str,
    /// The reason for the refusal.
    pub reason: &'static str,
    request: fn(&Scene<'_>) -> Vec<u8>,
}

/// The data that the attacker has.
struct Scene<'a> {
    world: &'a World,
    /// The cluster for which the evidence is valid.
    audience: Audience,
    /// The victim's provider ID.
    provider_id: String,
    /// The victim's request. Every client that has a bootstrap token can read it.
    copied: Vec<u8>,
}

impl Scene<'_> {
    /// The parts of valid evidence from the victim's instance.
    fn rightful(&self) -> Parts<'_> {
        let victim = self.world.instance(LEAKED);
        let now = self.world.cloud.sts().now();
        victim.parts(&self.audience, &self.provider_id, now)
    }

    /// Creates a request with a new key. The request's evidence has these parts.
    fn with(&self, parts: &Parts<'_>) -> Vec<u8> {
        let evidence = |spki: &[u8]| Some(self.world.cloud.evidence(parts, spki));
        let (name, id) = (parts.node_name, parts.provider_id);
        Application::proving(name, id, Provider::AWS, evidence).request()
    }

    /// Creates a request with a new key, and this evidence.
    fn carrying(&self, evidence: Option<Vec<u8>>) -> Vec<u8> {
        let name = self.world.instance(LEAKED).node_name();
        Application::claiming(name, &self.provider_id, Provider::AWS, evidence).request()
    }
}

/// The attacks, in the order of the demo.
pub const ATTACKS: [Attack; 8] = [
    Attack {
        what: "worker-2's name, with no evidence",
        kind: "Denied",
        reason: "EvidenceMissing",
        request: |scene| scene.carrying(None),
    },
    Attack {
        what: "worker-2's identity, from the attacker's own instance",
        kind: "Denied",
        reason: "AnotherMachine",
        request: |scene| {
            let own = &scene.world.own;
            scene.with(&Parts {
                document: &own.document,
                rsa2048: &own.rsa2048,
                credentials: &own.credentials,
                ..scene.rightful()
            })
        },
    },
    Attack {
        what: "worker-2's document, copied to the attacker's instance",
        kind: "Denied",
        reason: "CallerIsAnotherInstance",
        request: |scene| {
            scene.with(&Parts {
                credentials: &scene.world.own.credentials,
                ..scene.rightful()
            })
        },
    },
    Attack {
        what: "worker-2's evidence, copied from its request to a new key",
        kind: "Denied",
        reason: "EvidenceReplayed",
        request: |scene| scene.carrying(Envelope::parse(&scene.copied).unwrap().evidence),
    },
    Attack {
        what: "this evidence before its first use: only STS can detect it",
        kind: "Denied",
        reason: "CallerRefused",
        request: |scene| {
            let cloud = &scene.world.cloud;
            scene.carrying(Some(cloud.evidence(&scene.rightful(), b"worker-2's key")))
        },
    },
    Attack {
        what: "evidence from worker-2 that is 20 minutes old",
        kind: "Failed",
        reason: "EvidenceExpired",
        request: |scene| {
            scene.with(&Parts {
                signed_at: scene.world.cloud.sts().now() - LONG_AGO,
                ..scene.rightful()
            })
        },
    },
    Attack {
        what: "a session of a profile role, with worker-2's name",
        kind: "Denied",
        reason: "CallerRoleNotAllowed",
        request: |scene| {
            let victim = &scene.world.instance(LEAKED).ec2.id;
            let session = Principal::session(ACCOUNT, "nodes", victim);
            scene.with(&Parts {
                credentials: &scene.world.cloud.sts().credentials(session),
                ..scene.rightful()
            })
        },
    },
    Attack {
        what: "a control-plane node's name, as root on worker-2",
        kind: "Denied",
        reason: "NodeNameMismatch",
        request: |scene| {
            scene.with(&Parts {
                node_name: scene.world.instance("control-plane-1").node_name(),
                ..scene.rightful()
            })
        },
    },
];

impl Attack {
    /// Runs the attack. `victim` is the name of worker-2's request.
    pub fn on(&self, world: &World, attacker: &Attacker, victim: &str) -> Verdict {
        let ca = CertificateDer::from_pem_slice(world.cluster.ca_pem().as_bytes()).unwrap();
        let scene = Scene {
            audience: Audience::of_ca(&ca),
            provider_id: world.instance(LEAKED).provider_id(),
            copied: attacker.read_request(victim).into_bytes(),
            world,
        };
        let request = String::from_utf8((self.request)(&scene)).unwrap();
        attacker.file(AWS, &request)
    }
}
