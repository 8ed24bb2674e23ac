//! The attester of an EC2 instance.

use std::sync::{Mutex, PoisonError};

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_attestation::evidence::{Header, MAX_EVIDENCE_LEN};
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, Claim, Identity, ProviderIdSources, Report};
use kubelet_authenticator::clock;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::settings::Entry;

use crate::credentials::Credentials;
use crate::examine;
use crate::identity::NOT_AWS;
use crate::name;
use crate::proof::prove;
use crate::session::Session;
use crate::settings::{self, PRINCIPAL};

/// This instance. Each request uses fresh data from its metadata service.
#[derive(Debug, Default)]
pub(crate) struct Instance {
    /// The session that read the provider ID. The evidence is read in the same session, so that it matches the provider
    /// ID, and so that a run needs only one token.
    session: Mutex<Option<Session>>,
}

impl Attester for Instance {
    fn provider(&self) -> Provider {
        Provider::AWS
    }

    fn settings(&self) -> &'static [Entry] {
        settings::TABLE
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        let session = Session::open(sources.settings, sources.deadline)?;
        session.check_provider_id(sources.settings)?;
        let id = session.identity.provider_id.clone();
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(id)
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let session = self
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .filter(|session| session.imds.is_usable());
        let session = match session {
            Some(session) => session,
            None => Session::open(claim.settings, claim.deadline)?,
        };
        session.evidence(claim).map(Some)
    }

    fn node_name_template(&self) -> Option<&'static str> {
        Some(name::TEMPLATE)
    }

    fn identify(&self, sources: &ProviderIdSources<'_>) -> Result<Identity, Failure> {
        let session = Session::open(sources.settings, sources.deadline)?;
        session.check_provider_id(sources.settings)?;
        examine::identify(&session, sources.deadline)
    }

    fn checks(&self) -> &'static [&'static str] {
        examine::CHECKS
    }

    fn examine(
        &self,
        sources: &ProviderIdSources<'_>,
        node_name: Option<&NodeName>,
        report: Report<'_>,
    ) {
        examine::examine(sources, node_name, report);
    }

    fn secret_members(&self) -> &'static [&'static str] {
        &["accessKeyId", "sessionToken", "signature"]
    }
}

impl Session {
    fn evidence(&self, claim: &Claim<'_>) -> Result<Vec<u8>, Failure> {
        let (settings, deadline) = (claim.settings, claim.deadline);
        self.check_name(settings, claim.node_name, deadline)?;
        let now = clock::now();
        let principal = settings.value(&PRINCIPAL).unwrap_or_default();
        let credentials = Credentials::read(&self.imds, principal, deadline)
            .and_then(|credentials| credentials.lasting(now))
            .map_err(|error| error.within("cannot read the instance's credentials"))?;
        let host = self.sts_host(settings, deadline)?;
        let binding = KeyBinding::new(
            &Provider::AWS,
            claim.audience,
            claim.provider_id,
            claim.node_name,
            claim.spki,
            &[&self.identity.digest],
        );
        let proof =
            prove(&self.identity.region, &host, &credentials, &binding, now).map_err(|error| {
                let what = "the instance's credentials are invalid";
                Failure::new(Code::EvidenceInvalid, what, NOT_AWS).because(&error)
            })?;
        let evidence = AwsEvidence {
            header: Header {
                version: claim.version.clone(),
                audience: claim.audience.clone(),
            },
            rsa2048: self.identity.rsa2048.clone(),
            sts: proof,
        };
        let evidence = evidence.to_json();
        if evidence.len() > MAX_EVIDENCE_LEN {
            let what = format!(
                "the evidence is {} bytes long (limit: {MAX_EVIDENCE_LEN})",
                evidence.len()
            );
            return Err(Failure::new(Code::EvidenceInvalid, what, NOT_AWS));
        }
        Ok(evidence)
    }
}
