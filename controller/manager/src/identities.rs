//! `identities`: shows, resets and revokes records.

use clap::{Args, Subcommand};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_runtime::client::CallError;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::identities::Identities;

use crate::error::BoxError;
use crate::query::{QueryOptions, aligned};

#[derive(Debug, Args)]
pub(crate) struct IdentitiesCommand {
    #[command(subcommand)]
    act: Act,
    #[command(flatten)]
    options: QueryOptions,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List the records
    List {
        /// Of this Cluster only
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
    /// Show one record
    Show(Whose),
    /// Give a node's name up: the next rightful claim of it, or a new key of the same machine, opens a
    /// new generation
    Reset(Whose),
    /// Take a node's certificates back: no renewal, no serving certificate, every write refused
    Revoke(Whose),
}

#[derive(Debug, Args)]
struct Whose {
    /// The Cluster
    cluster: String,
    /// The name of the Node
    node: String,
}

/// Runs the command, and returns its output.
pub(crate) async fn run(command: IdentitiesCommand) -> Result<String, BoxError> {
    let IdentitiesCommand { act, options } = command;
    let access = options.access().await?;
    let identities = Identities::new(&access);
    let of = options.namespace_of(&access);
    let QueryOptions {
        namespace, output, ..
    } = options;
    let whose = match &act {
        Act::List { cluster } => {
            let all = identities
                .list(namespace.as_deref(), cluster.as_deref())
                .await?;
            return output.print(&all, || table(&all));
        }
        Act::Show(whose) | Act::Reset(whose) | Act::Revoke(whose) => whose,
    };
    let Whose { cluster, node } = whose;
    let found = identities.of_node(&of, cluster, node).await?;
    let changed = match &act {
        Act::Reset(_) => Some(identities.reset(&found, now()).await?),
        Act::Revoke(_) => Some(identities.revoke(&found, now()).await?),
        Act::List { .. } | Act::Show(_) => None,
    };
    let changed = changed.as_ref();
    let identity = changed.map_or(&found, |changed| &changed.identity);
    let event_error = changed.and_then(|changed| changed.event_error.as_ref());
    output.print(identity, || said(&act, identity, node, event_error))
}

/// The record, or what was done with it, for a person.
fn said(act: &Act, identity: &NodeIdentity, node: &str, event_error: Option<&CallError>) -> String {
    let generation = identity.spec.generation;
    let mut text = match act {
        Act::List { .. } | Act::Show(_) => return shown(identity),
        Act::Reset(_) => format!(
            "Generation {generation} of node {node} is given up. The next request for this name that \
             passes every check opens generation {}; until then nothing changes, and the present \
             certificate goes on. With it, the certificates of the former generation are refused every \
             write.",
            generation.saturating_add(1)
        ),
        Act::Revoke(Whose { cluster, .. }) => format!(
            "Generation {generation} of node {node} is revoked. Within seconds the workload cluster \
             refuses every write with its certificates, and the Node goes NotReady; it gets no renewal \
             and no serving certificate. What it may read it can read until the certificate expires. To \
             let the machine join again: identities reset {cluster} {node}."
        ),
    };
    if let Some(error) = event_error {
        text += "\nWarning: there is no Event that says who did it: ";
        text += &error_chain(error);
        text.push('.');
    }
    text + "\n"
}

/// The state of a record, in one word.
fn state(identity: &NodeIdentity) -> &'static str {
    let spec = &identity.spec;
    let revoked = spec.revoked.as_ref();
    if spec.tombstone.is_some() {
        "Gone"
    } else if revoked.is_some_and(|revoked| revoked.generation >= spec.generation) {
        "Revoked"
    } else {
        "Live"
    }
}

fn expires(identity: &NodeIdentity) -> String {
    let status = identity.status.as_ref();
    let last = status.and_then(|status| status.not_after.as_ref());
    last.unwrap_or(&identity.spec.not_after).0.to_string()
}

fn table(identities: &[NodeIdentity]) -> String {
    let mut rows = vec![
        [
            "NAMESPACE",
            "CLUSTER",
            "NODE",
            "STATE",
            "GENERATION",
            "ATTESTOR",
            "PROVIDER ID",
            "EXPIRES",
        ]
        .map(str::to_owned),
    ];
    rows.extend(identities.iter().map(|identity| {
        let spec = &identity.spec;
        [
            identity.metadata.namespace.clone().unwrap_or_default(),
            spec.cluster_name.clone(),
            spec.node_name.clone(),
            state(identity).to_owned(),
            spec.generation.to_string(),
            spec.attestor.clone(),
            spec.provider_id.clone(),
            expires(identity),
        ]
    }));
    aligned(&rows)
}

fn shown(identity: &NodeIdentity) -> String {
    let spec = &identity.spec;
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let status = identity.status.as_ref();
    let last_renewal = status.and_then(|status| status.last_renewal.as_ref());
    let rows = [
        ("Node", spec.node_name.clone()),
        ("Cluster", spec.cluster_name.clone()),
        ("State", state(identity).to_owned()),
        ("Provider ID", spec.provider_id.clone()),
        ("Attestor", spec.attestor.clone()),
        ("Machine", text(spec.machine_name.clone())),
        ("Instance", text(spec.instance.clone())),
        (
            "Certificate UID",
            format!("{}.{}", spec.uid, spec.generation),
        ),
        ("Opened", spec.opened.time.0.to_string()),
        ("By request", spec.opened.request_name.clone()),
        (
            "Last renewal",
            text(last_renewal.map(|time| time.0.to_string())),
        ),
        ("Expires", expires(identity)),
    ]
    .map(|(name, value)| [format!("{name}:"), value]);
    aligned(&rows)
}
