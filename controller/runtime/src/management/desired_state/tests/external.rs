//! Tests of CAs whose key is held by an external signer.

use super::*;
use crate::external_signer::ExternalSigner;
use crate::metrics::Metrics;

/// A controller with an external signer, and a CA whose Secret does not contain its key.
fn external_world() -> World {
    let mut world = world();
    let (certificate, _) = ca();
    world.sources.ca = secret(&[("tls.crt", certificate)]);
    let endpoint = "unix:///nowhere/signer.sock".parse().unwrap();
    world.settings.external_signer = Some(ExternalSigner::new(endpoint, Metrics::default()));
    world
}

#[tokio::test]
async fn with_an_external_signer_a_ca_without_its_key_signs() {
    let service = external_world().plan().unwrap().unwrap();

    assert_eq!(
        service.configuration.signer.ca_der(),
        service.ca.certificates()[0]
    );
}

#[tokio::test]
async fn a_ca_key_in_the_secret_is_used_instead_of_the_external_signer() {
    let mut world = external_world();
    assert!(!world.plan().unwrap().unwrap().signer_unused);

    world.sources.ca = ca_secret(&ca());
    assert!(world.plan().unwrap().unwrap().signer_unused);
    let with_key = ClusterCa::from_secret(world.sources.ca.present().unwrap()).unwrap();
    let own = with_key.signer().unwrap().clone();
    let external = world.settings.external_signer.as_ref().unwrap();
    let signed = with_key.or_signed_by(external.key("tenant-a", "prod-1"));
    assert!(Arc::ptr_eq(signed.unwrap().signer().unwrap(), &own));

    world.settings.external_signer = None;
    assert!(!world.plan().unwrap().unwrap().signer_unused);
}

#[tokio::test]
async fn two_clusters_with_the_same_external_ca_do_not_stop_each_other() {
    let mut world = external_world();
    let ca = world.shown();
    let mut other = world.other("tenant-b", &ca);

    assert!(world.plan().unwrap().is_some());

    let ca = ClusterCa::from_secret(ca.present().unwrap()).unwrap();
    assert_eq!(other.hold(Some(ClusterCaKey::of(&ca))), None);
}

#[tokio::test]
async fn a_cluster_with_an_external_ca_is_stopped_by_the_owner_of_the_key() {
    let mut world = external_world();
    let pair = ca();
    world.sources.ca = secret(&[("tls.crt", pair.0.clone())]);
    assert!(world.plan().unwrap().is_some());

    let _other = world.other("tenant-b", &ca_secret(&pair));

    assert_eq!(world.why().reason(), "SharedCA");
}
