//! The checks of `doctor`, and the facts of `identify`.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kubelet_attestation::names::NodeName;
use kubelet_attestation_resolver as resolver;
use kubelet_authenticator::attester::{Finding, Identity, ProviderIdSources, Report};
use kubelet_authenticator::clock::{self, Deadline};
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::METADATA_ENDPOINT;
use kubelet_authenticator::settings::Settings;

use crate::credentials::Credentials;
use crate::name::private_dns_name;
use crate::session::Session;
use crate::settings::PRINCIPAL;

const METADATA: &str = "metadata-service";
const CREDENTIALS: &str = "instance-credentials";
const NAME: &str = "instance-name";
const STS: &str = "sts";

/// The checks, in the order of the output.
pub(crate) const CHECKS: &[&str] = &[METADATA, CREDENTIALS, NAME, STS];

/// The time limit for each call to the metadata service, including a second attempt.
const EXCHANGE: Duration = Duration::from_secs(3);

/// The time limit for resolving a name.
const RESOLUTION: Duration = Duration::from_secs(2);

const NO_METADATA: &str =
    "the instance metadata service does not provide the identity of the instance";

/// Runs the checks.
pub(crate) fn examine(
    sources: &ProviderIdSources<'_>,
    node_name: Option<&NodeName>,
    report: Report<'_>,
) {
    let settings = sources.settings;
    let soon = || sources.deadline.within(EXCHANGE);
    let session = match Session::open(settings, soon()) {
        Ok(session) => session,
        Err(failure) => {
            report(METADATA, Finding::fail(&failure));
            for name in [CREDENTIALS, NAME, STS] {
                report(name, Finding::skip(NO_METADATA));
            }
            return;
        }
    };
    let identity = &session.identity;
    let place = match settings.value(&METADATA_ENDPOINT) {
        Some(endpoint) => format!(", by {endpoint}"),
        None => String::new(),
    };
    let what = format!(
        "instance {} in {}{place}",
        identity.instance_id, identity.region
    );
    report(METADATA, Finding::pass(what));

    let principal = settings.value(&PRINCIPAL).unwrap_or_default();
    let credentials = Credentials::read(&session.imds, principal, soon())
        .and_then(|credentials| credentials.lasting(clock::now()))
        .map(|credentials| {
            let end = humantime::format_rfc3339_seconds(credentials.end());
            Finding::pass(format!("valid until {end}"))
        });
    report(CREDENTIALS, credentials.into());

    let finding = match node_name {
        Some(node_name) => instance_name(&session, settings, node_name, soon()).into(),
        None => Finding::skip("the node name is unknown"),
    };
    report(NAME, finding);

    let finding = match session.sts_host(settings, soon()) {
        Ok(host) if is_resolved(&host) => {
            Finding::pass(format!("{host}, which the controller calls"))
        }
        Ok(host) => Finding::warn(&Failure::new(
            Code::EvidenceUnavailable,
            format!("this machine cannot resolve {host}, which the controller calls"),
            "ignore this if the network of this machine has no route to STS; otherwise check the \
             resolver of this machine, and aws.stsEndpoint in the settings",
        )),
        Err(failure) => Finding::fail(&failure),
    };
    report(STS, finding);
}

fn instance_name(
    session: &Session,
    settings: &Settings,
    node_name: &NodeName,
    deadline: Deadline,
) -> Result<Finding, Failure> {
    session.check_name(settings, node_name, deadline)?;
    Ok(Finding::pass(format!("EC2 expects the name {node_name}")))
}

/// Whether the host has an address. The resolver can hang, so the lookup has a time limit.
fn is_resolved(host: &str) -> bool {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let host = host.to_owned();
    let (sender, receiver) = mpsc::sync_channel(1);
    let resolve = move || {
        let found = resolver::addresses_promptly(&host);
        let is_resolved = found.is_ok_and(|addresses| !addresses.is_empty());
        // Sending fails if the receiver has timed out.
        let _ = sender.send(is_resolved);
    };
    let started = thread::Builder::new().spawn(resolve);
    started.is_ok() && receiver.recv_timeout(RESOLUTION).unwrap_or_default()
}

/// Returns the instance's identity.
pub(crate) fn identify(session: &Session, deadline: Deadline) -> Result<Identity, Failure> {
    let identity = &session.identity;
    let names = session.local_hostname(deadline)?;
    let names = names.as_ref().map_or("", |names| names.as_str());
    let private = private_dns_name(names, &identity.region);
    let private = private.as_ref().map_or("", NodeName::as_str);
    Ok(Identity::new(identity.provider_id.clone())
        .with("instanceID", "Instance", identity.instance_id.as_str())
        .with("account", "Account", identity.account.as_str())
        .with("region", "Region", identity.region.as_str())
        .with("zone", "Zone", identity.zone.as_str())
        .with("privateDNSName", "Private DNS name", private))
}
