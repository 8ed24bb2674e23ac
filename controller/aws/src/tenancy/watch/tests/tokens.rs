//! Tests of service account tokens, as the API server issues them.

use http_body_util::BodyExt as _;
use hyper::Method;
use node_attestation_runtime::client::ClusterAccess;
use parking_lot::Mutex;

use super::api_server::json_answer;
use super::*;
use crate::tenancy::Role;

#[tokio::test]
async fn a_token_has_the_audiences_and_validity_of_its_account() {
    let asked: Arc<Mutex<Vec<(Method, String, Value)>>> = Arc::default();
    let heard = asked.clone();
    let access = ClusterAccess::in_memory(move |request| {
        let heard = heard.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut body: Value = serde_json::from_slice(&body).unwrap();
            let path = parts.uri.path().to_owned();
            heard
                .lock()
                .push((parts.method, path, body["spec"].clone()));
            body["status"] =
                json!({"token": "t0k3n", "expirationTimestamp": "2026-01-01T00:00:00Z"});
            json_answer(201, &body)
        }
    });
    let account = ServiceAccount {
        namespace: "capa-system".to_owned(),
        name: "nodes".to_owned(),
        audiences: vec!["sts.amazonaws.com".to_owned()],
        token_validity: Duration::from_hours(1),
        role: Role {
            arn: "arn:aws:iam::123456789012:role/nodes".parse().unwrap(),
            session_name: "nodes".to_owned(),
            duration: Duration::from_hours(1),
            external_id: None,
            inline_policy: None,
            policy_arns: BTreeSet::new(),
        },
    };

    let token = KubeTokens::new(access.client().clone())
        .token(&account)
        .await;

    assert_eq!(token.unwrap().expose(), "t0k3n");
    let path = "/api/v1/namespaces/capa-system/serviceaccounts/nodes/token".to_owned();
    let spec = json!({"audiences": ["sts.amazonaws.com"], "expirationSeconds": 3600});
    assert_eq!(*asked.lock(), [(Method::POST, path, spec)]);
}
