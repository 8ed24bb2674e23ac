//! Tests that put each hostile value into each field of every kind that the controller reads.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::events::v1::Event as KubeEvent;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ObjectList;

use super::*;
use crate::testing::{hostile_values, with_each_value};
use crate::watch::NoFields;

/// Lists each variant of `good` in one page with `good`, and sends an event for each variant.
fn hides_no_other<K, R>(good: &Value)
where
    K: Clone + Debug + DeserializeOwned + 'static,
    R: Clone + Debug,
{
    let good = named(good.clone(), "good");
    let variants = with_each_value(&good, &hostile_values());
    assert!(variants.len() > 20);
    for (place, hostile) in variants {
        let list = format!(r#"{{"metadata": {{}}, "items": [{hostile}, {good}]}}"#);
        let list: Result<ObjectList<Lenient<K, R>>, _> = serde_json::from_str(&list);
        let items = list
            .unwrap_or_else(|error| panic!("{place}: {error}"))
            .items;
        assert!(items[1].object.is_ok(), "{place}");

        let event = format!(r#"{{"type": "MODIFIED", "object": {hostile}}}"#);
        let event: Result<WatchEvent<Lenient<K, R>>, _> = serde_json::from_str(&event);
        assert!(matches!(event, Ok(WatchEvent::Modified(_))), "{place}");
        // The owner is readable regardless of the other fields.
        if !place.starts_with("/metadata") && !place.is_empty() {
            let namespace = items[0].metadata.namespace.as_deref();
            assert_eq!(namespace, Some("a"), "{place}");
        }
    }
}

#[test]
fn an_unusual_value_does_not_hide_other_objects_of_its_kind() {
    hides_no_other::<CertificateSigningRequest, CertificateSigningRequest>(&request());
    hides_no_other::<KubeletAuthentication, KubeletAuthentication>(&authentication());
    hides_no_other::<NodeIdentity, NodeIdentity>(&identity());
    let revoked = json!({"spec": {"revoked": {}}});
    hides_no_other::<RevokedNodeCredentials, RevokedNodeCredentials>(&revoked);
    hides_no_other::<Secret, Secret>(&secret());
    hides_no_other::<ConfigMap, ConfigMap>(&json!({"data": {"a": "b"}}));
    hides_no_other::<Node, Node>(&json!({"spec": {"providerID": "a"}}));
    hides_no_other::<Lease, Lease>(&json!({"spec": {"holderIdentity": "a"}}));
    hides_no_other::<ClusterRoleBinding, ClusterRoleBinding>(&binding());
    hides_no_other::<ClusterRole, ClusterRole>(&json!({"rules": [{"verbs": ["get"]}]}));
    hides_no_other::<Service, Service>(&json!({"spec": {"clusterIPs": ["10.0.0.1"]}}));
    hides_no_other::<ServiceCIDR, ServiceCIDR>(&json!({"spec": {"cidrs": ["10.0.0.0/16"]}}));
    let event = json!({"eventTime": null, "regarding": {"name": "a"}, "note": "text"});
    hides_no_other::<KubeEvent, KubeEvent>(&event);
    hides_no_other::<NoFields, Namespace>(&json!({"metadata": {"labels": {"a": "b"}}}));
    let custom = json!({"spec": {"other": {"a": 1}}, "status": {"ready": true}});
    hides_no_other::<NoFields, DynamicObject>(&custom);
}
