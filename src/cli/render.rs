//! The command `render`.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};

use super::arguments::{
    Arguments, BootstrapApi, ClusterClassOptions, KubeadmConfigOptions, Rendered, Templates,
};
use super::setup::plain;
use super::{Session, answer};
use crate::attester::Renewal;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::Kubeconfig;
use crate::settings::{CONFIG_FILE, Settings};
use crate::setup::{DROP_IN, check_length, drop_in, exec_kubeconfig};

/// The command that makes systemd read the drop-in, before kubeadm starts the kubelet.
const RELOAD: &str = "systemctl daemon-reload";

/// The flag that makes the kubelet request its serving certificate. Cluster API does not set it elsewhere.
const FLAG: (&str, &str) = ("rotate-server-certificates", "true");

/// The time for which kubeadm tries to set the label and the taint of a control plane's Node, in seconds. The kubelet
/// creates the Node after it gets a certificate, and the decision on its request can take longer than kubeadm's default
/// of one minute. Without the taint, workloads would run on the control plane.
const API_CALL_SECONDS: u32 = 600;

/// The bootstrap data format in which cloud-init evaluates templates.
const CLOUD_CONFIG: &str = "cloud-config";

/// The variable of a `ClusterClass`, and the name of its patch.
const VARIABLE: &str = "kubeletAuthentication";

impl Session {
    pub(super) fn render(
        &self,
        arguments: &Arguments,
        command: Option<&Path>,
        file: &Rendered,
    ) -> Result<(), Failure> {
        let program = command.map_or_else(|| self.packaged(), Path::to_owned);
        plain("--command", &program)?;
        self.warn_of_path(&program);
        let drop_in = || -> Result<String, Failure> {
            // Invalid settings are reported on the node, by `setup`.
            let (settings, _) = Settings::valid(Self::sources(arguments), &self.schema);
            plain("--state-directory", &settings.state_directory)?;
            Ok(drop_in(&program, &settings.state_directory))
        };
        let text = match file {
            Rendered::Kubeconfig => {
                let path = self.interactive(arguments)?.settings.bootstrap_kubeconfig;
                let endpoint = Kubeconfig::read_endpoint(&path)?;
                check_length(&endpoint, &path)?;
                exec_kubeconfig(&endpoint, &program)
            }
            Rendered::KubeletDropIn => drop_in()?,
            Rendered::KubeadmConfig(options) => {
                let options = KubeadmConfigOptions {
                    templates: self.named(&options.templates, options.format == CLOUD_CONFIG),
                    ..options.clone()
                };
                answer::yaml(&kubeadm_config(&options, self.serves(), &drop_in()?))
            }
            Rendered::ClusterClass(options) => {
                let options = ClusterClassOptions {
                    templates: self.named(&options.templates, true),
                    ..options.clone()
                };
                answer::yaml(&json!({
                    "variables": [variable(self.attester.provider().as_str(), subject(&options))],
                    "patches": [patch(&options, self.serves(), &drop_in()?)],
                }))
            }
        };
        answer::print(&text)
    }

    /// The templates. If no node name template is given, and cloud-init evaluates templates, this function adds the
    /// template of the provider.
    fn named(&self, given: &Templates, is_cloud_init: bool) -> Templates {
        let of_provider = self.attester.node_name_template();
        let of_provider = of_provider.filter(|_| is_cloud_init);
        let node_name = given.node_name_template.as_deref().or(of_provider);
        Templates {
            node_name_template: node_name.map(ToOwned::to_owned),
            ..given.clone()
        }
    }

    /// The path of the plugin in the packages.
    fn packaged(&self) -> PathBuf {
        let provider = self.attester.provider();
        PathBuf::from(format!(
            "/usr/bin/kubelet-authenticator-{}",
            provider.as_str()
        ))
    }

    /// Warns if the plugin's path is outside the usual directories for programs. systemd ignores a program that does
    /// not exist, and the node then joins without attestation or not at all.
    fn warn_of_path(&self, program: &Path) {
        if !is_installed(program) {
            let what = format!("{} is not in /usr or /opt", program.display());
            let remedy = "set --command to the path of the plugin on the nodes";
            let failure = Failure::new(Code::Usage, what, remedy);
            self.log.warn_of("unusual path of the plugin", &failure);
        }
    }

    /// Whether kubelets should request their serving certificates. Without evidence, the controller would not issue
    /// these certificates, and a kubelet that waits for a serving certificate does not serve its API.
    fn serves(&self) -> bool {
        self.attester.renewal() == Renewal::Attested
    }
}

/// Whether a path is in a directory for installed programs.
fn is_installed(program: &Path) -> bool {
    (program.starts_with("/usr") || program.starts_with("/opt"))
        && !program
            .components()
            .any(|part| part == Component::ParentDir)
}

/// Returns a `KubeadmConfigTemplate`, or the template of a control plane, for machines whose image contains the plugin.
fn kubeadm_config(options: &KubeadmConfigOptions, serves: bool, drop_in: &str) -> Value {
    let version = options.api_version;
    let templates = &options.templates;
    let mut spec = if options.control_plane {
        spec_of_control_plane(templates, version, drop_in)
    } else {
        spec_of_machines(templates, version, serves, drop_in)
    };
    spec.insert("format".to_owned(), json!(options.format));
    let (group, kind, spec) = if options.control_plane {
        let spec = json!({ "kubeadmConfigSpec": spec });
        (CONTROL_PLANE, CONTROL_PLANE_TEMPLATE, spec)
    } else {
        (BOOTSTRAP, "KubeadmConfigTemplate", spec.into())
    };
    json!({
        "apiVersion": api(group, version),
        "kind": kind,
        "metadata": { "name": options.name },
        "spec": { "template": { "spec": spec } },
    })
}

/// The fields of a `KubeadmConfig` that make the machines of a control plane run the plugin.
///
/// Cluster API connects to etcd through the kubelets of control planes, and the first control-plane node has no
/// `NodeIdentity`. If the kubelets waited for approved serving certificates, the control plane could not scale beyond
/// one Machine.
fn spec_of_control_plane(
    templates: &Templates,
    api_version: BootstrapApi,
    drop_in: &str,
) -> Map<String, Value> {
    let mut spec = spec_of_machines(templates, api_version, false, drop_in);
    // The first machine runs `kubeadm init`, and has the same registration as the machines that join.
    let join = spec.get("joinConfiguration");
    if let Some(registration) = join.and_then(|join| join.get("nodeRegistration")) {
        let init = json!({ "nodeRegistration": registration });
        spec.insert("initConfiguration".to_owned(), init);
    }
    // The older API does not have this field.
    if api_version == BootstrapApi::V1beta2 {
        let join = spec.entry("joinConfiguration");
        if let Value::Object(join) = join.or_insert_with(|| json!({})) {
            let timeouts = json!({ "kubernetesAPICallSeconds": API_CALL_SECONDS });
            join.insert("timeouts".to_owned(), timeouts);
        }
    }
    spec
}

/// Returns the fields of a `KubeadmConfig` that make its machines run the plugin.
fn spec_of_machines(
    templates: &Templates,
    api_version: BootstrapApi,
    serves: bool,
    drop_in: &str,
) -> Map<String, Value> {
    let provider_id = templates.provider_id_template.as_deref();
    let mut files = vec![file(DROP_IN, drop_in)];
    files.extend(provider_id.map(|id| file(CONFIG_FILE, &settings(id))));
    let mut spec = Map::new();
    spec.insert("files".to_owned(), files.into());
    spec.insert("preKubeadmCommands".to_owned(), json!([RELOAD]));

    let mut registration = Map::new();
    if let Some(name) = &templates.node_name_template {
        registration.insert("name".to_owned(), json!(name));
    }
    let provider_id = provider_id.map(|id| ("provider-id", id));
    let arguments: Vec<_> = serves
        .then_some(FLAG)
        .into_iter()
        .chain(provider_id)
        .collect();
    if !arguments.is_empty() {
        let arguments = kubelet_arguments(api_version, &arguments);
        registration.insert("kubeletExtraArgs".to_owned(), arguments);
    }
    // Cluster API rejects empty objects.
    if !registration.is_empty() {
        let join = json!({ "nodeRegistration": registration });
        spec.insert("joinConfiguration".to_owned(), join);
    }
    spec
}

/// The settings file of the plugin.
fn settings(provider_id: &str) -> String {
    answer::yaml(&json!({
        "apiVersion": "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "providerID": provider_id,
    }))
}

/// The API group of the bootstrap templates of Cluster API.
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";

/// The kind of a control plane's template.
const CONTROL_PLANE_TEMPLATE: &str = "KubeadmControlPlaneTemplate";

fn api(group: &str, version: BootstrapApi) -> String {
    let version = match version {
        BootstrapApi::V1beta1 => "v1beta1",
        BootstrapApi::V1beta2 => "v1beta2",
    };
    format!("{group}/{version}")
}

fn file(path: &str, content: &str) -> Value {
    json!({ "path": path, "owner": "root:root", "permissions": "0644", "content": content })
}

fn kubelet_arguments(version: BootstrapApi, arguments: &[(&str, &str)]) -> Value {
    let arguments = arguments.iter();
    match version {
        BootstrapApi::V1beta1 => arguments
            .map(|(flag, value)| ((*flag).to_owned(), json!(value)))
            .collect::<Map<_, _>>()
            .into(),
        BootstrapApi::V1beta2 => arguments
            .map(|(flag, value)| json!({ "name": flag, "value": value }))
            .collect(),
    }
}

/// The nodes that the patch of a `ClusterClass` changes.
fn subject(options: &ClusterClassOptions) -> &'static str {
    if options.control_plane {
        "all nodes"
    } else {
        "workers"
    }
}

/// The variable of a `ClusterClass` that enables the patch, and specifies the attestors for the controller. The
/// variable has a default, because Cluster API evaluates the patch for every Cluster of the class.
fn variable(provider: &str, subject: &str) -> Value {
    json!({
        "name": VARIABLE,
        "required": false,
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "default": { "enabled": false },
            "properties": {
                "enabled": {
                    "type": "boolean",
                    "default": false,
                    "description": format!("Whether {subject} get their certificates through kubelet-authenticator."),
                },
                "authorizedAttestors": {
                    "type": "array",
                    "default": [provider],
                    "minItems": 1,
                    "maxItems": 8,
                    "items": { "type": "string", "minLength": 1, "maxLength": 32 },
                    "description": "The attestation providers whose evidence is accepted.",
                },
            },
        } },
    })
}

/// Returns the `ClusterClass` patch that configures workers to run the plugin. If `options.control_plane` is set, the
/// patch also configures control-plane machines.
///
/// A patch can append to a list or a map only if it exists, and cannot test whether it exists. Therefore, options list
/// the absent fields.
fn patch(options: &ClusterClassOptions, serves: bool, drop_in: &str) -> Value {
    let every = json!({ "names": ["*"] });
    let workers = if options.machine_pools {
        json!({ "machineDeploymentClass": every, "machinePoolClass": every })
    } else {
        json!({ "machineDeploymentClass": every })
    };
    let (templates, api_version) = (&options.templates, options.api_version);
    let spec = spec_of_machines(templates, api_version, serves, drop_in);
    let mut definitions = vec![json!({
        "selector": {
            "apiVersion": api(BOOTSTRAP, api_version),
            "kind": "KubeadmConfigTemplate",
            "matchResources": workers,
        },
        "jsonPatches": json_patches("/spec/template/spec", &spec, &options.absent),
    })];
    if options.control_plane {
        let spec = spec_of_control_plane(templates, api_version, drop_in);
        let path = "/spec/template/spec/kubeadmConfigSpec";
        definitions.push(json!({
            "selector": {
                "apiVersion": api(CONTROL_PLANE, api_version),
                "kind": CONTROL_PLANE_TEMPLATE,
                "matchResources": { "controlPlane": true },
            },
            "jsonPatches": json_patches(path, &spec, &options.control_plane_absent),
        }));
    }
    let subject = subject(options);
    json!({
        "name": VARIABLE,
        "description": format!("Runs kubelet-authenticator on {subject}."),
        "enabledIf": format!("{{{{ .{VARIABLE}.enabled }}}}"),
        "definitions": definitions,
    })
}

/// The patches that add the fields of `spec` to the specification of machines at this path.
fn json_patches(path: &str, spec: &Map<String, Value>, absent: &[String]) -> Vec<Value> {
    let mut patches = Vec::new();
    let configurations = ["initConfiguration", "joinConfiguration"];
    for field in ["files", "preKubeadmCommands"]
        .into_iter()
        .chain(configurations)
    {
        if let Some(value) = spec.get(field) {
            add(&format!("{path}/{field}"), value, absent, &mut patches);
        }
    }
    patches
}

/// The patches that add `value` to the specification of the machines: they append to existing lists and maps, and
/// create the first path that is in `absent`.
fn add(path: &str, value: &Value, absent: &[String], patches: &mut Vec<Value>) {
    let mut push = |path: &str, value: &Value| {
        patches.push(json!({ "op": "add", "path": path, "value": value }));
    };
    let field = path.rsplit('/').next().unwrap_or_default();
    if absent.iter().any(|absent| absent == field) {
        push(path, value);
    } else if let Value::Object(fields) = value {
        for (field, value) in fields {
            add(&format!("{path}/{field}"), value, absent, patches);
        }
    } else if let Value::Array(items) = value {
        for item in items {
            push(&format!("{path}/-"), item);
        }
    } else {
        push(path, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(api_version: BootstrapApi, control_plane: bool) -> KubeadmConfigOptions {
        KubeadmConfigOptions {
            name: "a".to_owned(),
            api_version,
            format: "cloud-config".to_owned(),
            control_plane,
            templates: Templates {
                provider_id_template: None,
                node_name_template: Some("{{ ds.meta_data.hostname }}".to_owned()),
            },
        }
    }

    #[test]
    fn a_control_plane_waits_10_minutes_and_requests_no_serving_certificate() {
        let rendered = kubeadm_config(&options(BootstrapApi::V1beta2, true), true, "drop-in");

        let kind = (&rendered["apiVersion"], &rendered["kind"]);
        let expected = (
            &json!("controlplane.cluster.x-k8s.io/v1beta2"),
            &json!("KubeadmControlPlaneTemplate"),
        );
        assert_eq!(kind, expected);
        let spec = &rendered["spec"]["template"]["spec"]["kubeadmConfigSpec"];
        assert_eq!(
            spec["joinConfiguration"],
            json!({
                "nodeRegistration": { "name": "{{ ds.meta_data.hostname }}" },
                "timeouts": { "kubernetesAPICallSeconds": 600 },
            })
        );
        let init = json!({ "nodeRegistration": { "name": "{{ ds.meta_data.hostname }}" } });
        assert_eq!(spec["initConfiguration"], init);
        assert_eq!(spec["files"][0]["content"], "drop-in");
        assert_eq!(spec["preKubeadmCommands"], json!([RELOAD]));
        assert_eq!(spec["format"], "cloud-config");
    }

    #[test]
    fn a_control_plane_in_the_older_kubeadm_api_has_no_timeouts() {
        let rendered = kubeadm_config(&options(BootstrapApi::V1beta1, true), true, "drop-in");

        assert_eq!(
            rendered["apiVersion"],
            "controlplane.cluster.x-k8s.io/v1beta1"
        );
        let spec = &rendered["spec"]["template"]["spec"]["kubeadmConfigSpec"];
        let join = json!({ "nodeRegistration": { "name": "{{ ds.meta_data.hostname }}" } });
        assert_eq!(spec["joinConfiguration"], join);
    }

    #[test]
    fn a_worker_has_no_timeouts_and_requests_a_serving_certificate() {
        let rendered = kubeadm_config(&options(BootstrapApi::V1beta2, false), true, "drop-in");

        assert_eq!(rendered["kind"], "KubeadmConfigTemplate");
        let join = &rendered["spec"]["template"]["spec"]["joinConfiguration"];
        assert_eq!(join["timeouts"], Value::Null);
        let argument = &join["nodeRegistration"]["kubeletExtraArgs"][0]["name"];
        assert_eq!(argument, FLAG.0);
    }
}
