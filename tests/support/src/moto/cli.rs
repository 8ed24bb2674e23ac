//! A shell with the commands of the AWS CLI.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use super::{DIRECTORY, Moto, access_key};
use crate::process::Scratch;

/// A Python program for AWS CLI commands: `SERVICE OPERATION [--OPTION VALUE]...`.
///
/// Like the CLI, the program reads operations and options from the service models of botocore, which also checks the
/// values. For `run-instances`, the CLI has `--count` instead of two options.
const CLI: &str = r#"
import json, os, sys
import botocore.session
from botocore import xform_name
service, operation, *words = sys.argv[1:]
client = botocore.session.get_session().create_client(service, endpoint_url=os.environ["EC2_ENDPOINT" if service == "ec2" else "ENDPOINT"])
operations = {xform_name(name, "-"): name for name in client.meta.service_model.operation_names}
members = client.meta.service_model.operation_model(operations[operation]).input_shape.members
shapes = {"--" + xform_name(name, "-"): (name, shape) for name, shape in members.items()}
request = {}
for option, value in zip(words[::2], words[1::2], strict=True):
    if (operation, option) == ("run-instances", "--count"):
        request["MinCount"] = request["MaxCount"] = int(value)
        continue
    name, shape = shapes[option]
    request[name] = value if shape.type_name == "string" else json.loads(value)
answer = getattr(client, xform_name(operations[operation]))(**request)
answer.pop("ResponseMetadata")
print(json.dumps(answer, default=str))
"#;

impl Moto {
    /// Runs a script in which `aws` calls moto in one region, as the owner of an account.
    #[track_caller]
    pub fn shell(&self, account: &str, region: &str, script: &str) -> Output {
        let scratch = Scratch::new("aws-cli");
        let program = scratch.write("cli.py", CLI);
        let python = DIRECTORY.join("bin/python");
        let wrapper = format!(
            "#!/bin/sh\nexec '{}' '{}' \"$@\"\n",
            python.display(),
            program.display()
        );
        // The python3 of a version manager might put its own directory first in PATH, which can contain the real CLI.
        let interpreter = format!("#!/bin/sh\nexec '{}' \"$@\"\n", python.display());
        for (name, text) in [("aws", wrapper), ("python3", interpreter)] {
            let program = scratch.write(name, text);
            fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let (id, secret) = access_key(account);
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .env("PATH", format!("{}:{path}", scratch.path().display()))
            .env("ENDPOINT", format!("http://{}", self.server))
            .env("EC2_ENDPOINT", self.url())
            .env("AWS_ACCESS_KEY_ID", id)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .env("AWS_DEFAULT_REGION", region)
            .output()
            .expect("bash can be started")
    }
}
