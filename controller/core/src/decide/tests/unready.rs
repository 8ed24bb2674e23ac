//! Tests of requests that wait during outages, or for machines that are not ready. The controller never denies these
//! requests.

use std::net::IpAddr;
use std::sync::Arc;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use crate::decide::*;
use crate::identifiers::{KeyDigest, RecordUid, TokenId};
use crate::inventory::{Inventory, Machine, MachineState, Naming, StaticInventory, TokenOwner};
use crate::ledger::{AllRecords, LastIssued, Record, Records, Stored, Version, WriteError};
use crate::refusal::Unavailable;
use crate::testing::cluster::{Parts, machine};
use crate::testing::{cluster, decided, insecure, valid};
use crate::verifier::{
    Appraisal, Assurance, Identity, InsecureVerifier, Verifier, VerifierUnavailable, Verifiers,
};

/// An implementation of all traits that is always unavailable.
#[derive(Debug)]
struct Down;

fn down() -> Unavailable {
    Unavailable::new("connection refused")
}

#[async_trait::async_trait]
impl Inventory for Down {
    async fn by_provider_id(&self, _: &ProviderId) -> Result<Option<Machine>, Unavailable> {
        Err(down())
    }

    async fn by_token(&self, _: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        Err(down())
    }

    async fn by_address(&self, _: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        Err(down())
    }

    async fn by_name(&self, _: &str) -> Result<Vec<Machine>, Unavailable> {
        Err(down())
    }
}

/// An inventory in which the lookup by token is unavailable.
#[derive(Debug)]
struct WithoutTokens(StaticInventory);

#[async_trait::async_trait]
impl Inventory for WithoutTokens {
    async fn by_provider_id(&self, id: &ProviderId) -> Result<Option<Machine>, Unavailable> {
        self.0.by_provider_id(id).await
    }

    async fn by_token(&self, _: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        Err(down())
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.0.by_address(address).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.0.by_name(name).await
    }
}

#[async_trait::async_trait]
impl Records for Down {
    async fn known(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        Err(down())
    }

    async fn known_of_machine(
        &self,
        _: &Identity,
        _: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        Err(down())
    }

    async fn known_of_uid(&self, _: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        Err(down())
    }

    async fn caught_up(&self, _: &NodeName, _: &Version) -> Result<(), Unavailable> {
        Err(down())
    }

    async fn read(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        Err(down())
    }

    async fn create(&self, _: &Record) -> Result<Stored, WriteError> {
        Err(down().into())
    }

    async fn replace(&self, _: &Record, _: &Version) -> Result<Stored, WriteError> {
        Err(down().into())
    }

    async fn delete(&self, _: &NodeName, _: &Version) -> Result<(), WriteError> {
        Err(down().into())
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        Err(down())
    }

    async fn note(&self, _: &NodeName, _: &LastIssued) -> Result<(), Unavailable> {
        Err(down())
    }
}

#[async_trait::async_trait]
impl Verifier for Down {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        static V1: std::sync::LazyLock<Vec<EvidenceVersion>> =
            std::sync::LazyLock::new(|| vec![EvidenceVersion::V1]);
        &V1
    }

    async fn verify(&self, _: Appraisal<'_>, _: SystemTime) -> Result<Assurance, Refusal> {
        Err(Deferral::VerifierUnavailable(down()).into())
    }
}

/// The machines with these names. `None` represents an outage of the inventory.
#[derive(Debug)]
struct Named {
    machines: StaticInventory,
    naming: Option<Naming>,
    /// Whether a lookup can also find machines by provider ID, in addition to tokens.
    has_provider_ids: bool,
}

#[async_trait::async_trait]
impl Inventory for Named {
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        if self.has_provider_ids {
            self.machines.by_provider_id(provider_id).await
        } else {
            Ok(None)
        }
    }

    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        self.machines.by_token(token).await
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.machines.by_address(address).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.machines.by_name(name).await
    }

    async fn naming(&self, _: &Machine, _: &NodeName) -> Result<Naming, Unavailable> {
        self.naming.clone().ok_or_else(down)
    }
}

fn with_machines(machines: Vec<Machine>) -> Context {
    Context {
        inventory: Arc::new(StaticInventory::new(machines).unwrap()),
        ..cluster()
    }
}

#[track_caller]
fn retried(request: &CertificateSigningRequest, context: &Context) -> Deferral {
    let decision = decided(request, context);
    let Decision::Retry(deferral) = decision else {
        panic!("not retried: {decision:?}")
    };
    deferral
}

/// A cluster that authorizes `insecure`, and also `null`, which its controller does not support.
fn without_null() -> Context {
    let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier);
    let unknown = VerifierUnavailable::Unknown("null".to_owned());
    Context {
        verifiers: [Err(unknown), Ok(insecure)].into_iter().collect(),
        ..cluster()
    }
}

#[test]
fn a_request_for_an_unavailable_attestor_waits_and_is_not_parsed() {
    let context = without_null();
    let mut unreadable = valid();
    unreadable.spec.request.0 = vec![b'x'; 512 * 1024];
    let mut serving = valid();
    serving.spec.signer_name = Provider::NULL.serving_signer();

    for request in [valid(), unreadable, serving] {
        let deferral = retried(&request, &context);

        assert_eq!(deferral.reason(), "VerifierUnavailable");
        assert_eq!(
            error_chain(&deferral),
            "the verifier is unavailable: this controller has no verifier for the attestor \"null\""
        );
    }
}

#[test]
fn a_request_for_an_available_attestor_is_decided() {
    let decision = decided(&insecure(), &without_null());

    assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
}

#[test]
fn the_signer_of_an_unavailable_attestor_is_watched() {
    let context = without_null();
    let signer = Provider::NULL.client_signer();

    assert!(context.signers().contains(&signer));
    assert!(!context.available_signers().contains(&signer));
    assert_eq!(
        context.available_signers(),
        cluster_of_insecure().available_signers()
    );
}

fn cluster_of_insecure() -> Context {
    let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier);
    Context {
        verifiers: Verifiers::from_iter([insecure]),
        ..cluster()
    }
}

#[test]
fn unavailable_attestors_are_reported() {
    let report = |context: Context| {
        let report = context.verifiers.availability();
        assert_eq!(report.of, "AttestorsAvailable");
        (report.holds.to_string(), report.reason, report.message)
    };
    let (status, reason, message) = report(without_null());

    assert_eq!((&*status, reason), ("False", "AttestorUnknown"));
    assert!(message.contains("\"null\""), "{message}");
    let all = report(cluster_of_insecure());
    assert_eq!(all, ("True".to_owned(), "AllAvailable", String::new()));
}

#[test]
fn an_outage_of_the_inventory_is_retried() {
    let context = Context {
        inventory: Arc::new(Down),
        ..cluster()
    };

    for request in [valid(), insecure()] {
        assert_eq!(retried(&request, &context).reason(), "InventoryUnavailable");
    }
}

#[test]
fn an_unknown_node_name_is_retried() {
    let shared = Naming::Shared {
        other: "m2".to_owned(),
    };
    for (naming, reason) in [
        (None, "InventoryUnavailable"),
        (Some(Naming::Unknown), "MachineNotReady"),
        (Some(shared), "NodeNameShared"),
    ] {
        let machines = vec![machine("m1", "n1", Some("abcdef"))];
        let context = Context {
            inventory: Arc::new(Named {
                machines: StaticInventory::new(machines).unwrap(),
                naming,
                has_provider_ids: true,
            }),
            ..cluster()
        };

        for request in [valid(), insecure()] {
            assert_eq!(retried(&request, &context).reason(), reason);
        }
    }
}

#[test]
fn an_outage_of_the_verifier_is_retried() {
    let down: Arc<dyn Verifier> = Arc::new(Down);
    let context = Context {
        verifiers: Verifiers::from_iter([down]),
        ..cluster()
    };

    assert_eq!(retried(&valid(), &context).reason(), "VerifierUnavailable");
}

#[test]
fn an_outage_of_the_ledger_is_retried() {
    let context = Parts {
        records: Arc::new(Down),
        ..Parts::default()
    }
    .cluster();

    assert_eq!(retried(&valid(), &context).reason(), "LedgerUnavailable");
}

#[test]
fn a_request_for_an_unknown_machine_is_retried() {
    let context = with_machines(vec![]);

    for request in [valid(), insecure()] {
        assert!(matches!(
            retried(&request, &context),
            Deferral::MachineNotFound
        ));
    }
}

#[test]
fn a_request_for_a_machine_that_is_not_ready_is_retried() {
    let ready = machine("m1", "n1", Some("abcdef"));
    let pending = Machine {
        state: MachineState::Pending,
        ..ready.clone()
    };
    let nameless = Machine {
        node_name: None,
        ..ready.clone()
    };
    let not_known_to_have_no_provider_id = Machine {
        provider_id: None,
        ..ready
    };

    for (machine, request) in [
        (pending.clone(), valid()),
        (pending, insecure()),
        (nameless.clone(), valid()),
        (nameless, insecure()),
        (not_known_to_have_no_provider_id, insecure()),
    ] {
        assert!(matches!(
            retried(&request, &with_machines(vec![machine])),
            Deferral::MachineNotReady { .. }
        ));
    }
}

#[test]
fn a_machine_with_an_unread_bootstrap_config_waits_indefinitely() {
    let in_state = |state| {
        with_machines(vec![Machine {
            state,
            ..machine("m1", "n1", None)
        }])
    };
    for request in [valid(), insecure()] {
        let deferral = retried(&request, &in_state(MachineState::Unread));

        assert_eq!(
            error_chain(&deferral),
            "cannot read the machines of the cluster: cannot read the bootstrap configuration of machine m1"
        );
    }
    // A machine whose token is not in the inventory joins with evidence.
    let ready = in_state(MachineState::Ready);
    let decision = decided(&valid(), &ready);
    assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
    let deferral = retried(&insecure(), &ready);
    assert!(matches!(deferral, Deferral::MachineNotFound), "{deferral}");
}

#[test]
fn an_insecure_machine_without_a_provider_id_is_matched_by_its_token() {
    let unnamed = Machine {
        provider_id: None,
        unnamed: true,
        ..machine("m1", "n1", Some("abcdef"))
    };
    let other = Machine {
        provider_id: machine("m1", "n1", None).provider_id,
        ..machine("m2", "n2", Some("ghijkl"))
    };
    let alone = with_machines(vec![unnamed.clone()]);

    let decision = decided(&insecure(), &alone);
    assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
    // A request with evidence waits, because no machine has its provider ID.
    assert!(matches!(
        retried(&valid(), &alone),
        Deferral::MachineNotFound
    ));
    let Decision::Deny(denial) = decided(&insecure(), &with_machines(vec![unnamed, other])) else {
        panic!("not denied");
    };
    assert_eq!(denial.reason(), "ProviderIdOfAnotherMachine");
}

#[test]
fn a_machine_joins_only_with_the_provider_id_of_its_infra_machine() {
    let own = machine("m1", "n1", Some("abcdef"));
    let other = Machine {
        provider_id: machine("m2", "n2", None).provider_id,
        ..own.clone()
    };
    let decision = |machine| {
        // This state exists while only the InfraMachine has a provider ID.
        let inventory = Named {
            machines: StaticInventory::new(vec![machine]).unwrap(),
            naming: Some(Naming::Own),
            has_provider_ids: false,
        };
        let context = Context {
            inventory: Arc::new(inventory),
            ..cluster()
        };
        decided(&valid(), &context)
    };

    let joins = decision(own);
    assert!(matches!(joins, Decision::Issue(_)), "{joins:?}");
    let Decision::Deny(denial) = decision(other) else {
        panic!("not denied");
    };
    assert_eq!(denial.reason(), "ProviderIdOfAnotherMachine");
}

#[test]
fn a_machine_that_is_being_deleted_is_denied() {
    let deleting = Machine {
        state: MachineState::Deleting,
        ..machine("m1", "n1", Some("abcdef"))
    };

    let decision = decided(&valid(), &with_machines(vec![deleting]));
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    assert_eq!(denial, Denial::MachineDeleting("m1".to_owned()));
}

#[test]
fn a_machine_with_its_own_token_causes_no_token_lookup() {
    let of_m1 = |token| {
        let machines = vec![machine("m1", "n1", token)];
        let inventory = Arc::new(WithoutTokens(StaticInventory::new(machines).unwrap()));
        Parts {
            inventory,
            ..Parts::default()
        }
        .cluster()
    };

    let own = decided(&valid(), &of_m1(Some("abcdef")));
    assert!(matches!(own, Decision::Issue(_)), "{own:?}");

    let anothers = decided(&valid(), &of_m1(Some("ghijkl")));
    let denied = matches!(anothers, Decision::Deny(Denial::TokenOfAnotherMachine(..)));
    assert!(denied, "{anothers:?}");

    let unknown = decided(&valid(), &of_m1(None));
    let waits = matches!(unknown, Decision::Retry(Deferral::InventoryUnavailable(_)));
    assert!(waits, "{unknown:?}");
}
