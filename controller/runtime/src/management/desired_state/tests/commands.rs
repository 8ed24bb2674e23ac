//! Tests that the commands, and the controller without a management cluster, report the same reasons as the controller
//! with a management cluster.

use std::collections::BTreeSet;

use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::inventory::StaticInventory;
use node_attestation_core::ledger::MemoryRecords;
use node_attestation_core::nodes::{Node, Nodes};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::serving::NodeReportedAddresses;
use node_attestation_core::testing::now;

use super::*;
use crate::file_inventory::ClusterInventory;
use crate::management::not_served::{CaSecret, not_served};
use crate::standalone::{ClusterInFiles, StandaloneError};

/// The reason that `explain` derives from the objects, which do not contain a condition.
fn explained(world: &World) -> Option<String> {
    let ca = match &world.sources.ca {
        Observed::Unknown | Observed::Unreadable(_) => CaSecret::Unread,
        Observed::Absent => CaSecret::Absent,
        Observed::Present(secret) => CaSecret::Present(secret),
    };
    let cluster = world.sources.cluster.present();
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    not_served(&world.authentication, cluster, ca, &verifiers, now())
}

/// A workload cluster without Nodes.
#[derive(Debug)]
struct NoNodes;

#[async_trait::async_trait]
impl Nodes for NoNodes {
    async fn state(&self, _: &NodeName) -> Result<Option<Node>, Unavailable> {
        Ok(None)
    }

    async fn delete(&self, _: &NodeName, _: &str) -> Result<(), Unavailable> {
        Ok(())
    }
}

#[async_trait::async_trait]
impl NodeReportedAddresses for NoNodes {
    async fn names(&self, _: &NodeName) -> Result<Vec<ServingName>, Unavailable> {
        Ok(Vec::new())
    }
}

#[test]
fn explain_finds_the_reason_of_the_controller_in_the_objects() {
    let cases: [(&str, Change); 10] = [
        ("Misnamed", |world| {
            world.authentication.metadata.name = Some("prod-2".to_owned());
        }),
        ("Paused", World::pause),
        ("ClusterNotFound", |world| {
            world.sources.cluster = Observed::Absent;
        }),
        ("Paused", |world| world.cluster().paused = true),
        ("CANotFound", |world| world.sources.ca = Observed::Absent),
        ("CAInvalid", |world| {
            world.sources.ca = secret(&[("tls.crt", "no certificate".to_owned())]);
        }),
        ("CAKeyMismatch", |world| {
            let ((certificate, _), (_, key)) = (ca(), ca());
            world.sources.ca = ca_secret(&(certificate, key));
        }),
        ("AudienceInvalid", |world| {
            world.authentication.spec.audiences = vec!["a b".to_owned()];
        }),
        ("SettingsInvalid", |world| {
            let spec = &mut world.authentication.spec;
            spec.guest_reported_addresses = GuestReportedAddresses::Allow;
        }),
        ("ServingAddressRangeInvalid", |world| {
            world.authentication.spec.serving_address_ranges = vec!["all".to_owned()];
        }),
    ];
    assert_eq!(explained(&world()), None);
    for (reason, change) in cases {
        let mut world = world();
        change(&mut world);

        let why = world.why();

        assert_eq!(why.reason(), reason);
        let expected = format!("{reason}: {why}");
        assert_eq!(explained(&world), Some(expected));
    }
}

#[test]
fn invalid_settings_have_the_same_reason_without_a_management_cluster() {
    let changes: [fn(&mut KubeletAuthenticationSpec); 3] = [
        |spec| spec.audiences = vec!["a b".to_owned()],
        |spec| spec.guest_reported_addresses = GuestReportedAddresses::Allow,
        |spec| spec.serving_address_ranges = vec!["all".to_owned()],
    ];
    let signer = world().plan().unwrap().unwrap().configuration.signer;
    let in_files = |authentication: &KubeletAuthentication| {
        let files = ClusterInFiles {
            authentication,
            inventory: ClusterInventory {
                machines: Some(Arc::new(StaticInventory::default())),
                endpoint_hosts: Vec::new(),
                service_ranges: Vec::new(),
            },
            ca_certificates: &BTreeSet::new(),
            workload: None,
            verifiers: Verifiers::default(),
            records: Arc::new(MemoryRecords::default()),
            signer: signer.clone(),
        };
        files.context(NoNodes)
    };
    assert!(in_files(&world().authentication).is_ok());
    for change in changes {
        let mut world = world();
        change(&mut world.authentication.spec);

        let refused = in_files(&world.authentication).unwrap_err();

        assert_eq!(refused.to_string(), world.why().to_string());
    }
}

#[test]
fn without_attestors_both_controllers_have_the_same_reason() {
    let mut world = world();
    let unavailable = VerifierUnavailable::Unknown("tpm".to_owned());
    world.has_insecure = false;
    world.unavailable = vec![unavailable.clone()];

    let refused = StandaloneError::from(unavailable);

    assert_eq!(refused.to_string(), world.why().to_string());
}
