//! The commands, one function each.

use std::ffi::OsString;
use std::time::Duration;

use kubelet_attestation::csr::envelope::Envelope;
use serde_json::{Value, json};

use super::arguments::{self, Arguments, Command, Kubelet, OutputFormat, Request, Version};
use super::{Session, answer, print, status};
use crate::attester::LEFT_OUT;
use crate::authenticator::{Authenticator, Caller, Cluster};
use crate::clock;
use crate::failure::{Code, Failure};
use crate::http::is_fips;
use crate::kube::NewCsr;
use crate::kube::kubeconfig::Kubeconfig;
use crate::settings::Sources;

impl Session {
    pub(super) fn command(
        &self,
        arguments: &Arguments,
        exec_info: Option<&OsString>,
    ) -> Result<(), Failure> {
        match (&arguments.command, exec_info) {
            (None | Some(Command::Credential(_)), Some(info)) => {
                self.speak_to_client_go(info, Self::sources(arguments))
            }
            (None, None) => Err(Failure::new(
                Code::Usage,
                "no command, and KUBERNETES_EXEC_INFO is not set: client-go sets this variable \
                 when the kubelet runs the plugin",
                "run a command such as `status` or `doctor`, or see --help",
            )),
            (Some(Command::Credential(kubelet)), None) => {
                print(&self.in_cluster_of(kubelet, arguments)?)
            }
            (Some(Command::Status { kubelet, output }), _) => {
                show_status(&self.in_cluster_of(kubelet, arguments)?, *output)
            }
            (Some(Command::Doctor { kubelet, output }), _) => {
                self.examine(arguments, &kubelet.kubelet_kubeconfig, *output)
            }
            (Some(Command::Identify { output }), _) => self.identify(arguments, *output),
            (Some(Command::Config { action }), _) => self.config(arguments, action),
            (Some(Command::Metrics { textfile }), _) => {
                self.metrics(arguments, textfile.as_deref())
            }
            (Some(Command::SupportBundle { file, kubelet }), _) => {
                self.support_bundle(arguments, &kubelet.kubelet_kubeconfig, file.as_deref())
            }
            (Some(Command::Inspect { object }), _) => self.inspect(arguments, object),
            (Some(Command::ExplainReason { name, output }), _) => {
                super::inspect::explain_reason(name, *output)
            }
            (
                Some(Command::Csr {
                    output,
                    show_secrets,
                    kubelet,
                    ..
                }),
                _,
            ) => {
                let authenticator = self.in_cluster_of(kubelet, arguments)?;
                show_request(&authenticator, *output, *show_secrets)
            }
            (Some(Command::Renew { force, kubelet }), _) => {
                renew(&self.in_cluster_of(kubelet, arguments)?, *force)
            }
            (Some(Command::Reset { yes }), _) => self.reset(arguments, *yes),
            (Some(Command::Setup(options)), _) => self.set_up(arguments, options),
            (Some(Command::Render { command, file }), _) => {
                self.render(arguments, command.as_deref(), file)
            }
            (Some(Command::Version { output }), _) => self.version(*output),
            (Some(Command::Completion { shell }), _) => {
                let mut command = arguments::command(&self.schema);
                let name = command.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut command, name, &mut script);
                answer::print(&String::from_utf8_lossy(&script))
            }
            (Some(Command::Man { command }), _) => self.manual(command),
        }
    }

    pub(super) fn interactive<'a>(
        &self,
        arguments: &Arguments,
    ) -> Result<Authenticator<'a>, Failure> {
        self.authenticator(Self::sources(arguments), Caller::Person)
    }

    /// Returns the inputs of a command, with the cluster in the kubelet's kubeconfig if that kubeconfig runs a plugin.
    /// If the API server has moved, the kubeconfig is more current than the stored cluster.
    fn in_cluster_of<'a>(
        &self,
        kubelet: &Kubelet,
        arguments: &Arguments,
    ) -> Result<Authenticator<'a>, Failure> {
        let endpoint = Kubeconfig::read_endpoint_of_plugin(&kubelet.kubelet_kubeconfig);
        Ok(Authenticator {
            cluster: endpoint.map(|endpoint| Cluster::Checked(endpoint.into())),
            ..self.interactive(arguments)?
        })
    }

    pub(super) fn sources(arguments: &Arguments) -> Sources<'_> {
        Sources {
            config: arguments.config.as_deref(),
            flags: arguments.settings.clone(),
            removed: arguments.removed.clone(),
            time_limit: arguments.time_limit.map(Duration::from_secs),
        }
    }

    fn version(&self, output: Version) -> Result<(), Failure> {
        let (version, provider) = (env!("CARGO_PKG_VERSION"), self.attester.provider());
        let text = match output {
            Version::Text => {
                let fips = if is_fips() { " (AWS-LC-FIPS)" } else { "" };
                format!("kubelet-authenticator-{provider} {version}{fips}\n")
            }
            Version::Json => answer::json(&self.versions()),
            Version::Yaml => answer::yaml(&self.versions()),
        };
        answer::print(&text)
    }

    pub(super) fn versions(&self) -> Value {
        let evidence = self.attester.versions();
        let evidence: Vec<_> = evidence.iter().map(ToString::to_string).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "provider": self.attester.provider().as_str(),
            "evidenceVersions": evidence,
            "fips": is_fips(),
        })
    }
}

fn show_status(authenticator: &Authenticator<'_>, output: OutputFormat) -> Result<(), Failure> {
    let status = status::Status::of(authenticator, clock::now())?;
    let text = match output {
        OutputFormat::Table => status.to_table(),
        OutputFormat::Json => answer::json(&status.to_json()),
        OutputFormat::Yaml => answer::yaml(&status.to_json()),
    };
    answer::print(&text)
}

fn show_request(
    authenticator: &Authenticator<'_>,
    output: Request,
    show_secrets: bool,
) -> Result<(), Failure> {
    let open = authenticator.dry_run()?;
    let secrets = authenticator.attester.secret_members();
    let bytes = if show_secrets || secrets.is_empty() {
        open.bytes.clone()
    } else {
        authenticator
            .log
            .warn("the request is printed without its secrets; to print them, add --show-secrets");
        without(secrets, &open.bytes)?
    };
    let object = || {
        let csr = NewCsr {
            request: &bytes,
            ..open.to_csr()
        };
        csr.to_object()
    };
    let text = match output {
        Request::Json => answer::json(&object()),
        Request::Yaml => answer::yaml(&object()),
        Request::Pem => String::from_utf8_lossy(&bytes).into_owned(),
    };
    answer::print(&text)
}

/// Returns the request without the values of these members in its evidence. Evidence that is not JSON is
/// omitted entirely.
fn without(secrets: &[&str], request: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut envelope = Envelope::parse(request).map_err(|error| Failure::bug(&error))?;
    envelope.evidence = envelope.evidence.map(|evidence| {
        let Ok(mut json) = serde_json::from_slice::<Value>(&evidence) else {
            return LEFT_OUT.into();
        };
        leave_out(secrets, &mut json);
        json.to_string().into_bytes()
    });
    Ok(envelope.encode())
}

fn leave_out(secrets: &[&str], json: &mut Value) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                if secrets.contains(&name.as_str()) {
                    *value = LEFT_OUT.into();
                } else {
                    leave_out(secrets, value);
                }
            }
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| leave_out(secrets, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn renew(authenticator: &Authenticator<'_>, force: bool) -> Result<(), Failure> {
    let (answer, renewed) = authenticator.renew(force)?;
    let end = humantime::format_rfc3339_seconds(answer.credential.validity().not_after);
    let text = if renewed {
        format!("got a new credential, valid until {end}\n")
    } else {
        format!("renewal is not due: the credential is valid until {end}\n")
    };
    answer::print(&text)
}
