//! `identities`: who holds which node name, and what a person can do about it.

use clap::{Args, Subcommand};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_runtime::admin::{Changed, Identities};
use node_attestation_runtime::clock::now;

use crate::query::{Format, QueryError, QueryOptions, aligned};

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

/// Does it, and gives what is to be printed.
pub(crate) async fn run(command: IdentitiesCommand) -> Result<String, QueryError> {
    let IdentitiesCommand { act, options } = command;
    let identities = Identities::new(&options.access().await?);
    let QueryOptions {
        namespace, output, ..
    } = options;
    let of = namespace.as_deref().unwrap_or("default");
    let (found, next) = match act {
        Act::List { cluster } => {
            let all = identities
                .list(namespace.as_deref(), cluster.as_deref())
                .await?;
            return match output {
                Format::Table => Ok(table(&all)),
                Format::Json => Ok(serde_json::to_string_pretty(&all)? + "\n"),
            };
        }
        Act::Show(Whose { cluster, node }) => {
            let found = identities.of_node(of, &cluster, &node).await?;
            (found, None)
        }
        Act::Reset(Whose { cluster, node }) => {
            let found = identities.of_node(of, &cluster, &node).await?;
            let (written, no_event) = done(identities.reset(&found, now()).await?);
            let next = format!(
                "Generation {} of node {node} is given up. The next request for this name that passes \
                 every check opens generation {}; until then nothing changes, and the present \
                 certificate goes on. With it, the certificates of the former generation are refused \
                 every write.{no_event}",
                written.spec.generation,
                written.spec.generation.saturating_add(1)
            );
            (written, Some(next))
        }
        Act::Revoke(Whose { cluster, node }) => {
            let found = identities.of_node(of, &cluster, &node).await?;
            let (written, no_event) = done(identities.revoke(&found, now()).await?);
            let next = format!(
                "Generation {} of node {node} is revoked. Within seconds the workload cluster refuses \
                 every write with its certificates, and the Node goes NotReady; it gets no renewal and \
                 no serving certificate. What it may read it can read until the certificate expires. \
                 To let the machine join again: identities reset {cluster} {node}.{no_event}",
                written.spec.generation
            );
            (written, Some(next))
        }
    };
    Ok(match (output, next) {
        (Format::Json, _) => serde_json::to_string_pretty(&found)? + "\n",
        (Format::Table, Some(next)) => next + "\n",
        (Format::Table, None) => shown(&found),
    })
}

/// The record, and what to say where there is no Event of the change.
fn done(changed: Changed) -> (NodeIdentity, String) {
    let error = changed.event_error.as_ref();
    let no_event = error.map(|error| {
        let error = error_chain(error);
        format!("\nWarning: there is no Event that says who did it: {error}.")
    });
    (changed.identity, no_event.unwrap_or_default())
}

/// In one word, what is the case with a record.
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
    let text = |value: Option<&String>| value.cloned().unwrap_or_else(|| "-".to_owned());
    let time = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let status = identity.status.as_ref();
    let rows = [
        ("Node", spec.node_name.clone()),
        ("Cluster", spec.cluster_name.clone()),
        ("State", state(identity).to_owned()),
        ("Provider ID", spec.provider_id.clone()),
        ("Attestor", spec.attestor.clone()),
        ("Machine", text(spec.machine_name.as_ref())),
        ("Instance", text(spec.instance.as_ref())),
        (
            "Certificate UID",
            format!("{}.{}", spec.uid, spec.generation),
        ),
        ("Opened", spec.opened.time.0.to_string()),
        ("By request", spec.opened.request_name.clone()),
        (
            "Last renewal",
            time(status.and_then(|status| Some(status.last_renewal.as_ref()?.0.to_string()))),
        ),
        ("Expires", expires(identity)),
    ]
    .map(|(name, value)| [format!("{name}:"), value]);
    aligned(&rows)
}
