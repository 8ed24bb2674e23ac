//! The verifier, which identifies the instance that sent a request. The checks run in a fixed order: cheap and local
//! checks first.
//!
//! | | check | source |
//! | --- | --- | --- |
//! | 1 | the evidence can be parsed, and is for this cluster | local |
//! | 2 | the identity document's signature | local |
//! | 3 | account and region are allowed for this cluster | local |
//! | 4 | the document matches the claimed machine | local |
//! | 5 | the STS caller is the instance of the document, and signed for this request | STS |
//! | 6 | the instance exists, is running, and belongs to this cluster; its name | EC2 |
//!
//! A contradiction ends the verification with a denial, and an unavailable source ends it with a retry. In both cases,
//! later checks do not run.

mod answers;

use std::sync::Arc;
use std::time::SystemTime;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Deferral, Denial, Reason, Refusal, Unavailable};
use node_attestation_core::verifier::{
    Appraisal, Assurance, AttestedIdentity, Foresight, Identity, Verifier,
};

use crate::credentials::Tenant;
use crate::denial::AwsDenial;
use crate::document::{Signers, VerifiedDocument};
use crate::ec2::{self, Checked, Instances, Reservation};
use crate::policy::AwsPolicy;
use crate::sts::Sts;
use crate::tenancy::credentials::TenantCredentials;

use self::answers::Answers;

/// The state and the clients that the verifiers of all clusters share.
///
/// The state is shared for two reasons. Evidence must be accepted only once, even if it is presented to several
/// clusters. Also, requests from several clusters with the same credentials share EC2 calls.
#[derive(Debug)]
pub struct AwsClients {
    signers: Signers,
    sts: Sts,
    instances: Instances,
    answers: Answers,
    tenants: Option<Arc<TenantCredentials>>,
}

impl AwsClients {
    /// Creates the shared state from the document signers, the STS client, and the EC2 client.
    pub fn new(signers: Signers, sts: Sts, instances: Instances) -> Self {
        Self {
            signers,
            sts,
            instances,
            answers: Answers::default(),
            tenants: None,
        }
    }

    /// Adds conditions about the clusters' identities.
    #[must_use]
    pub fn with_tenants(self, tenants: Arc<TenantCredentials>) -> Self {
        Self {
            tenants: Some(tenants),
            ..self
        }
    }
}

/// Appraises evidence from one cluster's instances.
#[derive(Debug)]
pub struct AwsVerifier {
    clients: Arc<AwsClients>,
    policy: AwsPolicy,
    cluster: String,
}

/// Evidence that has passed the offline checks.
struct Claim {
    evidence: AwsEvidence,
    document: VerifiedDocument,
    provider_id: ProviderId,
}

impl AwsVerifier {
    /// Creates a verifier with `policy` for the cluster with this UID. The cluster has a separate share of the clients.
    pub fn new(clients: Arc<AwsClients>, policy: AwsPolicy, cluster_uid: &str) -> Self {
        Self {
            clients,
            policy,
            cluster: cluster_uid.to_owned(),
        }
    }

    /// Runs the offline checks.
    fn read(&self, appraisal: &Appraisal<'_>) -> Result<Claim, Denial> {
        let evidence = appraisal.evidence.ok_or(Denial::EvidenceMissing)?;
        let evidence = AwsEvidence::parse(evidence)
            .map_err(|error| Denial::EvidenceMalformed(error.to_string()))?;
        if !appraisal.audiences.contains(&evidence.header.audience) {
            return Err(Denial::AudienceMismatch(evidence.header.audience));
        }
        let document = self.clients.signers.verify(&evidence.rsa2048)?;
        self.policy.accepts(&document)?;
        let provider_id = provider_id(&document)?;
        if provider_id != *appraisal.provider_id {
            return Err(Denial::AnotherMachine {
                attested: provider_id,
                claimed: appraisal.provider_id.clone(),
            });
        }
        Ok(Claim {
            evidence,
            document,
            provider_id,
        })
    }

    async fn is_called_by_its_instance(
        &self,
        claim: &Claim,
        appraisal: &Appraisal<'_>,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let (evidence, document) = (&claim.evidence, &claim.document);
        let binding = KeyBinding::new(
            &Provider::AWS,
            &evidence.header.audience,
            appraisal.provider_id,
            appraisal.node_name,
            appraisal.spki,
            &[&document.digest],
        );
        let Appraisal { spki, asked, .. } = *appraisal;
        let namespace = self.policy.tenant.line().namespace;
        let sts = self.clients.sts.of_cluster(&namespace, &self.cluster);
        sts.verify(&evidence.sts, document, &binding, spki, asked, now)
            .await
    }

    /// Checks that the document's region is the region of the tenant's cluster, if the cluster has a region. EC2 is not
    /// called in other regions.
    fn is_of_region(&self, document: &VerifiedDocument) -> Result<(), Refusal> {
        let tenants = self.clients.tenants.as_ref();
        tenants.map_or(Ok(()), |tenants| {
            ec2::check_region(&**tenants, &self.policy, &document.region)
        })
    }

    async fn is_there(
        &self,
        document: &VerifiedDocument,
        expected: Result<Reservation, Unavailable>,
        asked: SystemTime,
    ) -> Result<Checked, Refusal> {
        let facts = match expected {
            Ok(expected) if !is_of_account(&expected, document) => {
                return Err(AwsDenial::AccountNotAllowed(document.account.clone()).into());
            }
            Ok(expected) => expected.describe(&document.instance).await,
            Err(outage) => Err(outage),
        };
        let answers = &self.clients.answers;
        answers.heard(&self.cluster, &document.region, facts.as_ref().err());
        let facts = facts.map_err(Deferral::VerifierUnavailable)?;
        match facts {
            Some(facts) => ec2::check(&facts, document, &self.policy, asked),
            None => Err(ec2::absent(document, asked)),
        }
    }
}

#[async_trait::async_trait]
impl Verifier for AwsVerifier {
    fn provider(&self) -> &Provider {
        &Provider::AWS
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[EvidenceVersion::V1]
    }

    fn denials(&self) -> Vec<Reason> {
        AwsDenial::CATALOGUE.to_vec()
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let claim = self.read(&appraisal)?;
        let document = &claim.document;
        self.is_of_region(document)?;
        // With the reservation, requests from machines that join together share an EC2 call.
        let instances = &self.clients.instances;
        let expected = instances
            .expect(&self.policy.tenant, &document.region)
            .await;
        self.is_called_by_its_instance(&claim, &appraisal, now)
            .await?;
        // The instance's age is computed with the API server's time, because this machine's clock can be changed.
        let checked = self.is_there(document, expected, appraisal.asked).await?;
        let identity = Identity {
            node_name: Some(checked.node_name),
            instance: Some(claim.document.instance),
            ..Identity::of(claim.provider_id)
        };
        let attested = AttestedIdentity::vouched(identity);
        Ok(Assurance::Attested(match checked.first_claim_only {
            Some(denial) => attested.unless_known(denial),
            None => attested,
        }))
    }

    async fn foresee(
        &self,
        _machine: &Machine,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<Foresight, Refusal> {
        let instances = &self.clients.instances;
        let foresight = instances.foresee(&self.policy, provider_id, now).await?;
        foresight.ok_or_else(|| Denial::EvidenceMissing.into())
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let instances = &self.clients.instances;
        instances.serving_names(&self.policy, provider_id).await
    }

    fn background(&self) -> Option<BoxFuture<'static, ()>> {
        let Tenant::Cluster(tenant) = self.policy.tenant.clone() else {
            return None;
        };
        let tenants = self.clients.tenants.clone()?;
        let regions = self.policy.settings.regions.clone();
        Some(async move { tenants.keep_trying(&tenant, &regions).await }.boxed())
    }

    fn reports(&self) -> Vec<ConditionReport> {
        let answers = &self.clients.answers;
        let regions = &self.policy.settings.regions;
        match (&self.policy.tenant, &self.clients.tenants) {
            (Tenant::Cluster(tenant), Some(tenants)) => {
                let identity = tenants.identity_report(tenant);
                let ready = if identity.holds == ConditionStatus::False {
                    ConditionReport {
                        of: conditions::AWS_CREDENTIALS_READY,
                        holds: ConditionStatus::False,
                        reason: reason::IDENTITY_NOT_RESOLVED,
                        message: "the controller does not call AWS until it has determined the AWS identity".to_owned(),
                    }
                } else {
                    let failed = tenants.credentials_report(&tenant.cluster);
                    failed.unwrap_or_else(|| {
                        let expiry = tenants.expiry(&tenant.cluster);
                        let are_accepted = tenants.are_accepted(&tenant.cluster);
                        let report = answers.credentials(&self.cluster, regions, are_accepted);
                        until(report, expiry)
                    })
                };
                vec![identity, ready, tenants.name_report(&tenant.cluster)]
            }
            (Tenant::Controller, _) | (Tenant::Cluster(_), None) => {
                answers.reports(&self.cluster, regions)
            }
        }
    }
}

/// Adds the expiry time of the credentials to the report, if the credentials are accepted.
fn until(mut report: ConditionReport, expiry: Option<SystemTime>) -> ConditionReport {
    let expiry = expiry.and_then(|expiry| Timestamp::try_from(expiry).ok());
    if let Some(expiry) = expiry.filter(|_| report.holds == ConditionStatus::True) {
        report.message = format!("{}; the session ends at {expiry:.0}", report.message);
    }
    report
}

/// Whether the document's account is the account of the EC2 credentials. EC2 would not list an instance in a different
/// account, and the denial shows this reason to the owner.
fn is_of_account(expected: &Reservation, document: &VerifiedDocument) -> bool {
    expected
        .account()
        .is_none_or(|account| account == document.account)
}

/// Returns the provider ID of the instance, in the format of Cluster API Provider AWS.
fn provider_id(document: &VerifiedDocument) -> Result<ProviderId, AwsDenial> {
    let id = format!(
        "aws:///{}/{}",
        document.availability_zone, document.instance
    );
    ProviderId::parse(&id).map_err(|error| AwsDenial::DocumentMalformed(error.to_string()))
}

#[cfg(test)]
mod tests;
