//! Tests of each listed kind, with an object that exceeds the limits for one object.

use k8s_openapi::api::core::v1::Namespace;

use super::*;
use crate::capi::SecretValues;
use crate::watch::NoFields;
use crate::watch::oversized::hides_no_other;

#[tokio::test(start_paused = true)]
async fn an_oversized_object_does_not_hide_other_objects_of_its_kind() {
    use NamedBy::{Operator, Tenant};
    let none = json!({"metadata": {}});
    let all = Api::<Lenient<KubeletAuthentication>>::all;
    hides_no_other(Operator, &authentication(), all).await;
    let all = Api::<Lenient<NodeIdentity>>::all;
    hides_no_other(Operator, &identity(), all).await;
    let all = Api::<Lenient<SecretValues, Secret>>::all;
    hides_no_other(Operator, &secret(), all).await;
    let all = Api::<Lenient<NoFields, Namespace>>::all;
    hides_no_other(Operator, &none, all).await;
    let all = Api::<Lenient<CertificateSigningRequest>>::all;
    hides_no_other(Tenant, &request(), all).await;
}
