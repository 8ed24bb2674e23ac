//! `explain`: runs a request through the controller's checks.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};
use kubelet_attestation::ensure;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};
use node_attestation_runtime::explain::{Explainer, Explanation, StandaloneSettings, requests};
use node_attestation_runtime::file_inventory::ClusterInventory;
use node_attestation_runtime::settings_file;

use crate::aws::document_version;
use crate::error::{BoxError, explain};
use crate::file;
use crate::providers::Providers;
use crate::query::{QueryOptions, wrapped};

/// The maximum size of a file with requests, in bytes. This size is enough for hundreds of requests, each of which is a
/// few kilobytes long.
const MAX_FILE_LEN: usize = 4 * 1024 * 1024;

/// The maximum size of a CA file, in bytes. This is enough for hundreds of certificates.
const MAX_CA_LEN: usize = 256 * 1024;

/// The width of a label or an outcome, including the space after it.
const MARGIN: usize = 11;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("request").args(["name", "file"]).required(true).multiple(true))]
#[command(group = ArgGroup::new("machines").args(["cluster", "inventory"]).required(true))]
pub(crate) struct ExplainCommand {
    /// The name of the certificate signing request
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// File with the request, in the format of `kubectl get csr -o yaml`; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The Cluster, as NAME or NAMESPACE/NAME. The command reads its machines, node identities and settings
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Kubeconfig of the workload cluster, instead of Cluster API's Secret
    #[arg(long, value_name = "FILE")]
    workload_kubeconfig: Option<PathBuf>,
    /// List of the cluster's machines, for a controller without a management cluster
    #[arg(long, value_name = "FILE", requires = "settings")]
    inventory: Option<PathBuf>,
    /// Settings of a controller without a management cluster, as for `run`
    #[arg(
        long,
        value_name = "FILE",
        requires = "inventory",
        conflicts_with = "cluster"
    )]
    settings: Option<PathBuf>,
    /// CA certificate for client certificates, as PEM, for a controller without a management cluster. Default: the
    /// first CA certificate of the kubeconfig
    #[arg(
        long,
        value_name = "FILE",
        requires = "inventory",
        conflicts_with = "cluster"
    )]
    ca_cert: Option<PathBuf>,
    /// Additional AWS document signing certificates, as for `run`
    #[arg(long, value_name = "FILE")]
    aws_extra_signers: Option<PathBuf>,
    /// Additional version of instance identity documents, as for `run`
    #[arg(
        long = "aws-extra-document-version",
        value_name = "VERSION",
        value_parser = document_version
    )]
    aws_extra_document_versions: Vec<String>,
    #[command(flatten)]
    options: QueryOptions,
    /// Accept workload clusters whose API server has a loopback address
    #[arg(long, hide = true)]
    insecure_allow_loopback: bool,
}

/// Runs the command, and returns its output.
pub(crate) async fn run(command: ExplainCommand) -> Result<String, BoxError> {
    let explainer = match &command.cluster {
        Some(cluster) => Box::pin(of_cluster(&command, cluster)).await?,
        None => Box::pin(standalone(&command)).await?,
    };
    let asked = match (&command.file, &command.name) {
        (Some(path), name) => {
            let text = read(path)?;
            let place = path.display();
            let mut all = requests(&text).map_err(explain(format!("--file {place}")))?;
            let is_asked = |of: &Option<String>| name.is_none() || of == name;
            all.retain(|request| is_asked(&request.metadata.name));
            ensure!(
                !all.is_empty(),
                format!("--file {place} does not contain this CertificateSigningRequest").into()
            );
            all
        }
        (None, name) => vec![
            explainer
                .request(name.as_deref().unwrap_or_default())
                .await?,
        ],
    };
    let mut answers = Vec::new();
    for request in &asked {
        answers.push(explainer.explain(request).await);
    }
    let objects = match &answers[..] {
        [one] => serde_json::to_value(one)?,
        all => serde_json::to_value(all)?,
    };
    command.options.output.print(&objects, || {
        let texts: Vec<_> = answers.iter().map(table).collect();
        texts.join("\n")
    })
}

impl ExplainCommand {
    fn providers(&self, management: Option<&ClusterAccess>) -> Result<Providers, BoxError> {
        let signers = self.aws_extra_signers.as_deref();
        let versions = &self.aws_extra_document_versions;
        Providers::offline(signers, versions, management)
    }
}

async fn of_cluster(command: &ExplainCommand, cluster: &str) -> Result<Explainer, BoxError> {
    let management = command.options.access().await?;
    let key = match cluster.parse() {
        Ok(key) => key,
        Err(_) => ObjectKey::new(command.options.namespace_of(&management), cluster),
    };
    let providers = command.providers(Some(&management))?;
    let verifiers = |authentication: &KubeletAuthentication, cluster_uid: &str| {
        providers.verifiers(authentication, cluster_uid)
    };
    let egress = EgressPolicy {
        insecure_allow_loopback: command.insecure_allow_loopback,
    };
    let workload = workload(command).await?;
    let explainer = Explainer::of_cluster(&management, &key, workload, egress, verifiers);
    Ok(Box::pin(explainer).await?)
}

async fn standalone(command: &ExplainCommand) -> Result<Explainer, BoxError> {
    let workload = workload(command).await?;
    ensure!(
        workload.is_some() || (command.file.is_some() && command.ca_cert.is_some()),
        "without a management cluster, either --workload-kubeconfig, or both --file and --ca-cert are required"
            .into()
    );
    let ca_certificates = match &command.ca_cert {
        Some(path) => {
            let text = file::read("--ca-cert", path, MAX_CA_LEN)?;
            pem::parse_many(&text).map_err(explain(format!("--ca-cert {}", path.display())))?;
            text
        }
        None => Vec::new(),
    };
    let settings = command.settings.as_deref().unwrap_or(Path::new(""));
    let inventory = command.inventory.as_deref().unwrap_or(Path::new(""));
    let providers = command.providers(None)?;
    let settings = StandaloneSettings {
        workload,
        ca_certificates,
        inventory: ClusterInventory::open(inventory).map_err(explain("--inventory"))?,
        authentication: settings_file::read(settings).map_err(explain("--settings"))?,
    };
    let verifiers = |authentication: &KubeletAuthentication, cluster: &str| {
        providers.verifiers(authentication, cluster)
    };
    let explainer = Explainer::standalone(settings, verifiers);
    Ok(Box::pin(explainer).await?)
}

async fn workload(command: &ExplainCommand) -> Result<Option<ClusterAccess>, BoxError> {
    match &command.workload_kubeconfig {
        Some(file) => Ok(Some(ClusterAccess::from_kubeconfig(file).await?)),
        None => Ok(None),
    }
}

fn read(path: &Path) -> Result<String, BoxError> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        let at_most = u64::try_from(MAX_FILE_LEN).unwrap_or(u64::MAX);
        let read = io::stdin().take(at_most).read_to_end(&mut bytes);
        read.map_err(explain("cannot read standard input"))?;
        bytes
    } else {
        file::read("--file", path, MAX_FILE_LEN)?
    };
    Ok(String::from_utf8(bytes)?)
}

fn table(explained: &Explanation) -> String {
    let unknown = || "-".to_owned();
    let mut text = String::new();
    let row = |label: &str, words: &str, text: &mut String| {
        wrapped(&format!("{label}:"), MARGIN, words, text);
    };
    if let Some(why) = &explained.not_ready {
        row("Not ready", why, &mut text);
        text.push('\n');
    }
    row("Request", &explained.name, &mut text);
    if let Some(cluster) = &explained.cluster {
        row("Cluster", cluster, &mut text);
    }
    row(
        "Node",
        &explained.node.clone().unwrap_or_else(unknown),
        &mut text,
    );
    row("Requester", &explained.requester, &mut text);
    row("Signer", &explained.signer_name, &mut text);
    row("Signed by", &explained.signed_by, &mut text);
    if let Some(created) = &explained.created {
        row("Created", created, &mut text);
    }
    if let Some(seconds) = explained.pending_seconds {
        let age = humantime::format_duration(Duration::from_secs(seconds));
        row("Pending", &age.to_string(), &mut text);
    }
    text.push('\n');
    for check in &explained.checks {
        let words = if check.saw.is_empty() {
            check.name.to_owned()
        } else {
            format!("{}: {}", check.name, check.saw)
        };
        wrapped(check.outcome, MARGIN, &words, &mut text);
    }
    text.push('\n');
    let result = format!(
        "{}, {}: {}",
        explained.outcome, explained.reason, explained.message
    );
    row("Result", &result, &mut text);
    if let Some(cure) = explained.cure {
        row("Cure", cure, &mut text);
    }
    for condition in &explained.conditions {
        let time = condition.time.clone().unwrap_or_else(unknown);
        let words = format!(
            "{} {} at {time}: {}",
            condition.kind, condition.reason, condition.message
        );
        row("Condition", &words, &mut text);
    }
    if explained.issued {
        row("Issued", "the request already has a certificate", &mut text);
    }
    for event in &explained.events {
        let time = event.time.clone().unwrap_or_else(unknown);
        let words = format!("{} on {} at {time}: {}", event.reason, event.on, event.note);
        row("Event", &words, &mut text);
    }
    for note in &explained.notes {
        row("Note", note, &mut text);
    }
    text
}
