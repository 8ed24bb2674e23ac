//! Tests of serving certificates with names and addresses that the inventory does not report.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use super::serving::{alone, approved, denied, denied_by};
use crate::decide::*;
use crate::identifiers::ServingName;
use crate::inventory::Machine;
use crate::refusal::Unavailable;
use crate::serving::NodeReportedAddresses;
use crate::testing::serving::{ADDRESS, dns, ip, serving, serving_cluster, serving_for};
use crate::testing::{decided, now, pauses};
use crate::verifier::{Appraisal, Assurance, Verifier, VerifierUnavailable, Verifiers};

/// The names that Nodes report. `None` means that the controller cannot read the Nodes.
#[derive(Debug)]
struct Guest(Option<Vec<ServingName>>);

#[async_trait::async_trait]
impl NodeReportedAddresses for Guest {
    async fn names(&self, _: &NodeName) -> Result<Vec<ServingName>, Unavailable> {
        let names = self.0.clone();
        names.ok_or_else(|| Unavailable::new("connection refused"))
    }
}

pub(super) fn guest_reported(names: Option<Vec<ServingName>>) -> Context {
    let mut cluster = serving_cluster();
    cluster.serving.node_reported = Some(Arc::new(Guest(names)));
    cluster
}

#[test]
fn a_node_reported_address_counts_only_if_the_operator_allows_it() {
    let address = std::net::IpAddr::from([198, 51, 100, 7]);
    let request = serving_for(&[ip(address)]);
    let cluster = guest_reported(Some(vec![ServingName::Ip(address)]));

    approved(&request, &cluster);
    assert_eq!(
        denied(&request),
        Denial::ServingNameNotReported(ServingName::Ip(address), "m1".to_owned())
    );
}

#[test]
fn other_tasks_run_during_the_lookups_of_many_serving_names() {
    let names = (0..1024).map(|number| format!("{number}.example.com"));
    let names: Vec<String> = names.collect();
    let asked: Vec<_> = names.iter().map(|name| dns(name)).collect();
    // The order differs from the request.
    let reported = names.into_iter().rev().map(ServingName::Dns).collect();
    let cluster = guest_reported(Some(reported));
    let request = serving_for(&asked);

    let (decided, count) = pauses(decide(&request, &cluster, now(), || Duration::ZERO));

    let decision = decided.decision;
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
    assert_eq!(count, 1024 / 16);
}

/// The address of machine `m2`, and the address of a Service.
const STOLEN: [u8; 4] = [192, 0, 2, 2];
const RESERVED: [u8; 4] = [10, 96, 0, 1];

fn stolen_and_reserved() -> Vec<ServingName> {
    [STOLEN, RESERVED]
        .map(|address| ServingName::Ip(address.into()))
        .into()
}

#[track_caller]
fn assert_neither_is_approved(cluster: &Context) {
    assert_eq!(
        denied_by(&serving_for(&[ip(STOLEN)]), cluster),
        Denial::ServingNameOfAnotherMachine(ServingName::Ip(STOLEN.into()), "m2".to_owned())
    );
    assert_eq!(
        denied_by(&serving_for(&[ip(RESERVED)]), cluster),
        Denial::ServingNameReserved(ServingName::Ip(RESERVED.into()))
    );
}

#[test]
fn a_foreign_or_reserved_name_that_a_node_reports_is_denied() {
    assert_neither_is_approved(&guest_reported(Some(stolen_and_reserved())));
}

#[test]
fn an_outage_of_the_node_list_is_not_a_denial() {
    let request = serving_for(&[ip([198, 51, 100, 7])]);
    let decision = decided(&request, &guest_reported(None));

    assert!(
        matches!(
            decision,
            Decision::Retry(Deferral::InventoryUnavailable { .. })
        ),
        "{decision:?}"
    );
}

/// A platform that reports these names for machine `m1`. `None` means that its reports are unavailable.
#[derive(Debug)]
struct Platform(Option<Vec<ServingName>>);

impl Platform {
    /// The verifiers for a cluster that does not authorize other providers.
    fn alone(self) -> Verifiers {
        let verifier: Arc<dyn Verifier> = Arc::new(self);
        Verifiers::from_iter([verifier])
    }
}

#[async_trait::async_trait]
impl Verifier for Platform {
    fn provider(&self) -> &Provider {
        &Provider::AWS
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[]
    }

    async fn verify(
        &self,
        _appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        unreachable!("the request is for a serving certificate")
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        assert_eq!(provider_id.as_str(), "metal:///rack/m1");
        let names = self.0.clone().map(Some);
        names.ok_or_else(|| Unavailable::new("connection refused"))
    }
}

/// The cluster whose machine `m1` is a pool member without addresses in the inventory. The platform reports these
/// addresses for it.
fn platform_reported(names: Option<Vec<ServingName>>) -> Context {
    let cluster = alone(|machine| {
        machine.addresses.clear();
        machine.dns_names.clear();
    });
    Context {
        verifiers: Platform(names).alone(),
        ..cluster
    }
}

#[test]
fn an_address_reported_only_by_the_platform_is_approved() {
    let request = serving_for(&[ip(ADDRESS), dns("n1")]);
    let address = ServingName::Ip(ADDRESS.into());

    approved(&request, &platform_reported(Some(vec![address.clone()])));

    for other in [None, Some(ServingName::Ip([192, 0, 2, 9].into()))] {
        let cluster = platform_reported(Some(other.into_iter().collect()));
        assert_eq!(
            denied_by(&request, &cluster),
            Denial::ServingNameNotReported(address.clone(), "m1".to_owned())
        );
    }
}

#[test]
fn the_platform_is_not_queried_if_the_inventory_reports_the_names() {
    let mut cluster = serving_cluster();
    cluster.verifiers = Platform(None).alone();

    approved(&serving(), &cluster);
}

#[test]
fn a_foreign_or_reserved_name_that_a_platform_reports_is_denied() {
    let mut cluster = serving_cluster();
    cluster.verifiers = Platform(Some(stolen_and_reserved())).alone();

    assert_neither_is_approved(&cluster);
}

#[test]
fn a_node_reported_address_is_ignored_if_the_platform_reports_some() {
    let claimed = ServingName::Ip([198, 51, 100, 7].into());
    // The second machine has no names, like a machine that is being stopped.
    for reported in [vec![ServingName::Ip(ADDRESS.into())], Vec::new()] {
        let mut cluster = platform_reported(Some(reported));
        cluster.serving.node_reported = Some(Arc::new(Guest(Some(vec![claimed.clone()]))));
        assert_eq!(
            denied_by(&serving_for(&[ip([198, 51, 100, 7])]), &cluster),
            Denial::ServingNameNotReported(claimed.clone(), "m1".to_owned())
        );
    }
}

#[test]
fn a_platform_outage_is_not_a_denial() {
    let decision = decided(&serving_for(&[ip(ADDRESS)]), &platform_reported(None));

    assert!(
        matches!(
            decision,
            Decision::Retry(Deferral::VerifierUnavailable { .. })
        ),
        "{decision:?}"
    );
}

#[test]
fn a_name_that_only_an_unavailable_attestor_could_report_waits() {
    let claimed = ServingName::Ip(ADDRESS.into());
    let without = |attestor: &str| {
        let why = VerifierUnavailable::Unknown(attestor.to_owned());
        let mut cluster = platform_reported(None);
        cluster.verifiers = [Err(why)].into_iter().collect();
        // The controller accepts names that nodes report, but the platform could report other names.
        cluster.serving.node_reported = Some(Arc::new(Guest(Some(vec![claimed.clone()]))));
        cluster
    };
    let request = serving_for(&[ip(ADDRESS)]);

    // The first value is the attestor in the record, and the second value is the attestor in the provider ID.
    for attestor in ["null", "metal"] {
        let decision = decided(&request, &without(attestor));
        assert!(
            matches!(
                decision,
                Decision::Retry(Deferral::VerifierUnavailable { .. })
            ),
            "{attestor}: {decision:?}"
        );
    }
    approved(&request, &without("contoso"));
    let mut reported = serving_cluster();
    reported.verifiers = without("null").verifiers;
    approved(&serving(), &reported);
}

#[test]
fn an_address_waits_while_service_ranges_are_unknown() {
    let cluster = serving_cluster();
    let range = |text: &str| text.parse().unwrap();
    cluster.serving.service_ranges.set(Vec::new(), false);

    let decision = decided(&serving(), &cluster);

    let Decision::Retry(deferral) = &decision else {
        panic!("{decision:?}")
    };
    assert_eq!(deferral.reason(), "ServiceRangesUnknown");
    approved(&serving_for(&[dns("n1")]), &cluster);
    cluster
        .serving
        .service_ranges
        .set(vec![range("10.96.0.0/12")], true);
    approved(&serving(), &cluster);
}

#[test]
fn a_known_service_address_is_denied_while_other_ranges_are_unknown() {
    let cluster = serving_cluster();
    let service = std::net::IpAddr::from(RESERVED);
    cluster
        .serving
        .service_ranges
        .set(vec![service.into()], false);

    assert_eq!(
        denied_by(&serving_for(&[ip(RESERVED)]), &cluster),
        Denial::ServingNameReserved(ServingName::Ip(service))
    );
}

#[test]
fn a_platform_reported_address_does_not_need_service_ranges() {
    let unknown = |names: &[[u8; 4]]| {
        let names = names
            .iter()
            .map(|address| ServingName::Ip((*address).into()));
        let mut cluster = serving_cluster();
        cluster.verifiers = Platform(Some(names.collect())).alone();
        cluster.serving.service_ranges.set(Vec::new(), false);
        cluster
    };

    approved(&serving(), &unknown(&[ADDRESS]));

    let decision = decided(&serving(), &unknown(&[[192, 0, 2, 9]]));
    assert!(
        matches!(decision, Decision::Retry(Deferral::ServiceRangesUnknown)),
        "{decision:?}"
    );
}

/// The public address of machine `m1`, which only its platform reports, and the machine's name.
const PUBLIC: [u8; 4] = [198, 51, 100, 7];
const PUBLIC_NAME: &str = "ec2-198-51-100-7.compute.example";

/// The cluster in which Cluster API reports the addresses of machine `m1` in its status, and the platform reports these
/// names.
fn reported_by_both(by_platform: &[ServingName]) -> Context {
    Context {
        verifiers: Platform(Some(by_platform.to_vec())).alone(),
        ..serving_cluster()
    }
}

fn public() -> Vec<ServingName> {
    vec![
        ServingName::Ip(PUBLIC.into()),
        ServingName::Dns(PUBLIC_NAME.to_owned()),
    ]
}

/// A request for names from both sources, and for the node's own name.
fn mixed() -> CertificateSigningRequest {
    serving_for(&[
        dns("n1"),
        ip(ADDRESS),
        ip(PUBLIC),
        dns("m1.internal"),
        dns(PUBLIC_NAME),
    ])
}

#[test]
fn names_from_inventory_and_platform_are_approved_together() {
    approved(&mixed(), &reported_by_both(&public()));

    let not_reported = |name: ServingName| Denial::ServingNameNotReported(name, "m1".to_owned());
    for missing in public() {
        let mut others = public();
        others.retain(|name| *name != missing);
        assert_eq!(
            denied_by(&mixed(), &reported_by_both(&others)),
            not_reported(missing)
        );
    }
    let without = |change: fn(&mut Machine)| Context {
        verifiers: Platform(Some(public())).alone(),
        ..alone(change)
    };
    approved(&mixed(), &without(|_| {}));
    assert_eq!(
        denied_by(&mixed(), &without(|machine| machine.addresses.clear())),
        not_reported(ServingName::Ip(ADDRESS.into()))
    );
    assert_eq!(
        denied_by(&mixed(), &without(|machine| machine.dns_names.clear())),
        not_reported(ServingName::Dns("m1.internal".to_owned()))
    );
}

#[test]
fn a_request_with_one_foreign_or_guest_reported_name_is_denied() {
    let guest = [203, 0, 113, 9];
    for (name, expected) in [
        (
            STOLEN,
            Denial::ServingNameOfAnotherMachine(ServingName::Ip(STOLEN.into()), "m2".to_owned()),
        ),
        (
            RESERVED,
            Denial::ServingNameReserved(ServingName::Ip(RESERVED.into())),
        ),
        (
            guest,
            Denial::ServingNameNotReported(ServingName::Ip(guest.into()), "m1".to_owned()),
        ),
    ] {
        let mut by_platform = public();
        if name != guest {
            by_platform.push(ServingName::Ip(name.into()));
        }
        let mut cluster = reported_by_both(&by_platform);
        let by_guest = vec![ServingName::Ip(guest.into())];
        cluster.serving.node_reported = Some(Arc::new(Guest(Some(by_guest))));
        approved(&mixed(), &cluster);

        let request = serving_for(&[ip(ADDRESS), ip(PUBLIC), ip(name)]);
        assert_eq!(denied_by(&request, &cluster), expected);
    }
}

#[test]
fn an_inventory_address_waits_for_service_ranges_or_the_platform() {
    let unknown = |by_platform: &[ServingName]| {
        let cluster = reported_by_both(by_platform);
        cluster.serving.service_ranges.set(Vec::new(), false);
        cluster
    };
    let mut both = public();
    both.push(ServingName::Ip(ADDRESS.into()));

    approved(&mixed(), &unknown(&both));

    let decision = decided(&mixed(), &unknown(&public()));
    assert!(
        matches!(decision, Decision::Retry(Deferral::ServiceRangesUnknown)),
        "{decision:?}"
    );
    // The ranges do not limit names and the platform's own addresses.
    let request = serving_for(&[dns("n1"), dns("m1.internal"), ip(PUBLIC), dns(PUBLIC_NAME)]);
    approved(&request, &unknown(&public()));
}
