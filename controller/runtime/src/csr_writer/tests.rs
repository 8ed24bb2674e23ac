use super::testing::MemoryStore;
use super::*;

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
