use tokio::time::advance;

use super::*;
use crate::capi::Selection;
use crate::management::served_kind::ServedKind;
use crate::management::status_writer::RATE;
use crate::metrics::Metrics;

/// The time after which the controller looks up an unserved kind again.
const NOT_SERVED: Duration = Duration::from_secs(30);

const PATCH: &str = "v1beta1/namespaces/team-a/rackclusters/prod-1/status";

/// An infrastructure kind, and the object that writes to the `InfraCluster` of one Cluster.
fn rack(fields: &[&'static str]) -> (ServedKind, InfraCluster) {
    let (kind, writer) = racks(fields);
    (kind, writer())
}

/// An infrastructure kind, and a function that creates writers for Clusters.
fn racks(fields: &[&'static str]) -> (ServedKind, impl Fn() -> InfraCluster + use<>) {
    let group = "infrastructure.cluster.x-k8s.io";
    let kind = ServedKind::new(group, "RackCluster", "rackclusters").with_fields(fields);
    let access = kind.access();
    let client = access.client().clone();
    let (objects, _) = Objects::new(client.clone(), Selection::default(), &Metrics::default());
    let rate = Arc::new(FairRate::new(RATE));
    let shared = (Arc::new(definitions()), rate);
    let writer = move || {
        let (client, objects) = (client.clone(), objects.clone());
        let cluster = ObjectKey::new("team-a", "prod-1");
        InfraCluster::new(client, objects, shared.clone(), cluster)
    };
    (kind, writer)
}

async fn write(writer: &mut InfraCluster, signer: &str) {
    let reference = Reference {
        group: "infrastructure.cluster.x-k8s.io".to_owned(),
        version: Some("v1beta1".to_owned()),
        kind: "RackCluster".to_owned(),
        name: "prod-1".to_owned(),
    };
    let status = KubeletAuthenticationStatus {
        kubelet_client_certificate_signer: Some(signer.to_owned()),
        ..KubeletAuthenticationStatus::default()
    };
    writer.write(&reference, &status).await;
}

#[tokio::test(start_paused = true)]
async fn signers_are_written_when_the_infrastructure_version_is_served_again() {
    let (kind, mut writer) = rack(&[CLIENT_SIGNER, SERVING_SIGNER]);
    write(&mut writer, "example.com/a").await;
    assert_eq!(kind.patches(), [""; 0]);

    kind.serve(&["v1beta1"]);
    advance(NOT_SERVED).await;
    write(&mut writer, "example.com/a").await;
    assert_eq!(kind.patches(), [PATCH]);

    // Discovery lists the version, but the API server no longer serves it.
    kind.serve(&[]);
    write(&mut writer, "example.com/b").await;
    assert_eq!(kind.patches(), [""; 0]);
    kind.serve(&["v1beta1"]);
    let lookups = kind.lookups();
    write(&mut writer, "example.com/b").await;
    assert_eq!(
        (kind.patches(), kind.lookups()),
        (vec![PATCH.to_owned()], lookups + 1)
    );

    // A successful write must not be repeated.
    write(&mut writer, "example.com/b").await;
    assert_eq!(kind.patches(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_the_signer_fields_is_not_written() {
    let (kind, mut writer) = rack(&[CLIENT_SIGNER]);
    kind.serve(&["v1beta1"]);

    write(&mut writer, "example.com/a").await;

    assert_eq!((kind.patches(), kind.lookups()), (Vec::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn the_definition_of_a_kind_is_read_once_for_many_clusters() {
    let (kind, writer) = racks(&[CLIENT_SIGNER, SERVING_SIGNER]);
    kind.serve(&["v1beta1"]);

    for _ in 0..100 {
        write(&mut writer(), "example.com/a").await;
    }

    assert_eq!((kind.patches().len(), kind.definitions()), (100, 1));
    // The definition can have changed since then.
    advance(DEFINITION_KEPT).await;
    write(&mut writer(), "example.com/a").await;
    assert_eq!((kind.patches().len(), kind.definitions()), (1, 2));
}
