use std::collections::BTreeMap;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, Response};
use kube::client::Body;
use node_attestation_core::testing::valid;
use serde_json::json;

use super::testing::MemoryStore;
use super::*;
use crate::client::ClusterAccess;

/// A hostile API server that responds to an approval with this number of labels.
#[derive(Debug)]
struct Inflating(MemoryStore, usize);

#[async_trait::async_trait]
impl RequestStore for Inflating {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        self.0.get(name).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let mut answer = self.0.update(subresource, request).await?;
        let labels = (0..self.1).map(|number| (number.to_string(), String::new()));
        answer.metadata.labels = Some(labels.collect());
        Ok(answer)
    }
}

#[tokio::test]
async fn a_much_larger_response_to_a_write_is_not_kept() {
    for (labels, is_held) in [(4, true), (4000, false)] {
        let store = Inflating(
            MemoryStore::new(CertificateSigningRequest::default()),
            labels,
        );
        let request = store.get("").await.unwrap().unwrap();

        let approved = approve(&store, request, ApprovalReason::NodeNameClaimed).await;

        assert_eq!(approved.is_ok(), is_held);
        if let Err(error) = approved {
            let error = kubelet_attestation::errors::error_chain(&error);
            assert!(
                error.contains("the API server's response is longer than 8192 bytes"),
                "{error}"
            );
        }
        assert!(is_approved(&store.0.request()));
    }
}

#[tokio::test]
async fn a_write_reads_only_the_metadata_of_the_new_version() {
    let access = ClusterAccess::in_memory(|request: Request<Body>| {
        let accepted = request.headers().get(ACCEPT);
        let accepted = accepted.map_or("", |accepted| accepted.to_str().unwrap());
        assert!(accepted.contains("PartialObjectMetadata"), "{accepted}");
        let version = match request.uri().path().rsplit('/').next() {
            Some(APPROVAL) => "8",
            _ => "9",
        };
        let answer = json!({"metadata": {
            "name": "a", "resourceVersion": version,
            "labels": {"of": "others"}, "finalizers": ["example.com/others"],
        }});
        let answer = answer.to_string();
        async move { Response::new(Full::new(Bytes::from(answer))) }
    });
    let store = KubeStore::all(access.client().clone());
    let mut request = valid();
    request.metadata.name = Some("a".to_owned());
    request.metadata.resource_version = Some("7".to_owned());

    let approved = approve(&store, request.clone(), ApprovalReason::NodeNameClaimed).await;
    let approved = approved.unwrap();
    assert!(is_approved(&approved));
    assert_eq!(approved.metadata.resource_version.as_deref(), Some("8"));
    assert_eq!(approved.spec, request.spec);
    // The next write would delete metadata that it does not contain.
    let labels = BTreeMap::from([("of".to_owned(), "others".to_owned())]);
    assert_eq!(approved.metadata.labels, Some(labels));
    let finalizers = vec!["example.com/others".to_owned()];
    assert_eq!(approved.metadata.finalizers, Some(finalizers));

    let issued = store.update(STATUS, &approved).await.unwrap();
    assert_eq!(issued.metadata.resource_version.as_deref(), Some("9"));
    assert_eq!(
        (issued.spec, issued.status),
        (approved.spec, approved.status)
    );
}
