//! The controller's part of the verification: the chain for a request, up to the attested identity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::instance_identity::TestSigner;
use kubelet_authenticator_test_support::sts::Sts as Service;
use node_attestation_aws::credentials::{
    Credentials, CredentialsKey, CredentialsSource, Lease, Tenant,
};
use node_attestation_aws::document::Signers;
use node_attestation_aws::ec2::{
    Attachment, CallLimits, Describe, InstanceFacts, Instances, Limits, OutageKind, Page, Query,
    RootDevice,
};
use node_attestation_aws::policy::AwsPolicy;
use node_attestation_aws::sts::{Sts, StsSettings};
use node_attestation_aws::verifier::{AwsClients, AwsVerifier};
use node_attestation_core::crd::AwsSettings;
use node_attestation_core::inventory::StaticInventory;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::request::{AttestedCsr, LocatedCsr, RawRequest};
use node_attestation_core::verifier::{Verifier, Verifiers};

use crate::fleet::{self, ACCOUNT, CLUSTER, Instance, REGION, ZONE};

/// A controller for one cluster.
pub(crate) struct Controller {
    verifiers: Verifiers,
    inventory: StaticInventory,
    audiences: [Audience; 1],
}

impl Controller {
    /// Creates a controller for a cluster without any earlier decisions.
    pub(crate) fn new(fleet: &[Instance], signer: &TestSigner, sts: &Service) -> Self {
        let clients = AwsClients::new(signers(signer), caller(sts), instances());
        let verifier: Arc<dyn Verifier> =
            Arc::new(AwsVerifier::new(Arc::new(clients), policy(), ""));
        let machines = fleet.iter().map(Instance::machine).collect();
        Self {
            verifiers: Verifiers::from_iter([verifier]),
            inventory: StaticInventory::new(machines).unwrap(),
            audiences: [fleet::audience()],
        }
    }

    /// Runs the checks that precede the verification of the evidence.
    pub(crate) async fn locate(&self, request: &CertificateSigningRequest) -> LocatedCsr {
        RawRequest::triage(request, &self.verifiers)
            .unwrap()
            .parse()
            .unwrap()
            .conform_client(self.verifier(), Duration::from_hours(7 * 24))
            .unwrap()
            .locate(&self.inventory)
            .await
            .unwrap()
    }

    /// Runs the whole verification.
    pub(crate) async fn attest(&self, request: &CertificateSigningRequest) -> AttestedCsr {
        let located = self.locate(request).await;
        located.attest(&self.audiences, fleet::now()).await.unwrap()
    }

    fn verifier(&self) -> &Arc<dyn Verifier> {
        self.verifiers.of(&Provider::AWS).unwrap()
    }
}

/// AWS's document signing certificates, and another certificate.
pub(crate) fn signers(signer: &TestSigner) -> Signers {
    let file = signer.signers_file(&[REGION]);
    Signers::embedded().with_file(&file).unwrap()
}

/// A client that calls only this service.
pub(crate) fn caller(service: &Service) -> Sts {
    let settings = StsSettings {
        endpoints: [(REGION.to_owned(), service.host().parse().unwrap())].into(),
        authorities: Some(service.ca_pem().as_bytes().to_vec()),
        ..StsSettings::default()
    };
    Sts::new(settings).unwrap()
}

/// Queries a simulated EC2 that responds immediately, for one instance at a time and without a cache.
pub(crate) fn instances() -> Instances {
    let limits = Limits {
        window: Duration::ZERO,
        calls: CallLimits {
            rate: Rate {
                burst: u32::MAX,
                every: Duration::ZERO,
            },
            remembered: Duration::ZERO,
            ..Limits::default().calls
        },
        ..Limits::default()
    };
    Instances::with(Arc::new(OneTenant::new()), Arc::new(AllKnown), limits)
}

pub(crate) fn policy() -> AwsPolicy {
    AwsPolicy::new(&AwsSettings::default(), Some(CLUSTER.to_owned()))
}

/// Placeholder credentials, whose values are never used. Calls with these credentials fail.
#[derive(Debug)]
pub(crate) struct OneTenant(Credentials);

impl OneTenant {
    pub(crate) fn new() -> Self {
        let provider = aws_credential_types::Credentials::new("key", "secret", None, None, "bench");
        Self(Credentials {
            key: CredentialsKey::new([0; 32]),
            config: SdkConfig::builder()
                .behavior_version(BehaviorVersion::latest())
                .credentials_provider(SharedCredentialsProvider::new(provider))
                .http_client(http_client_fn(|_, _| SharedHttpConnector::new(NoNetwork)))
                .build(),
            account: None,
            lease: Lease::Endless,
        })
    }
}

#[derive(Debug)]
struct NoNetwork;

impl HttpConnector for NoNetwork {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let error = ConnectorError::io("the benchmark has no network".into());
        HttpConnectorFuture::ready(Err(error))
    }
}

#[async_trait::async_trait]
impl CredentialsSource for OneTenant {
    async fn credentials(&self, _: &Tenant, _region: &str) -> Result<Credentials, Unavailable> {
        Ok(self.0.clone())
    }
}

/// A simulated EC2 in which every instance exists and is valid.
#[derive(Debug)]
struct AllKnown;

#[async_trait::async_trait]
impl Describe for AllKnown {
    async fn describe(
        &self,
        _credentials: &Credentials,
        _region: &str,
        query: &Query,
        _next: Option<&str>,
    ) -> Result<Page, OutageKind> {
        let ids: &[String] = match query {
            Query::Ids(ids) => ids,
            Query::Tags(_) => &[],
        };
        let page = Page {
            instances: ids.iter().map(|id| facts(id)).collect(),
            next: None,
        };
        Ok(page)
    }
}

fn facts(id: &str) -> InstanceFacts {
    let attached = Attachment {
        time: Some(fleet::launch()),
    };
    let own = format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{CLUSTER}");
    InstanceFacts {
        id: id.to_owned(),
        owner: ACCOUNT.to_owned(),
        state: "running".to_owned(),
        zone: ZONE.to_owned(),
        launched: Some(fleet::launch()),
        private_dns_name: Some(fleet::node_name(id)),
        addresses: vec![[10, 0, 0, 1].into()],
        dns_names: vec![fleet::node_name(id)],
        first_interface: Some(attached),
        root: RootDevice::Volume(Some(attached)),
        tags: BTreeMap::from([(own, "owned".to_owned())]),
    }
}
