//! The attestation provider `aws`: its options, and the clients that its verifiers share.

mod tenancy;

use std::collections::BTreeMap;

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_attestation::evidence::aws::is_region;
use node_attestation_aws::credentials::{CredentialsSource, DefaultChain, NoCredentials};
use node_attestation_aws::document::Signers;
use node_attestation_aws::ec2::{Ec2Settings, Instances, NitroTpms};
use node_attestation_aws::partition::{EndpointHost, InvalidHost};
use node_attestation_aws::proxy::{Proxy, SharedHttpClient};
use node_attestation_aws::sts::{InvalidStsSettings, ProfileRole, Sts, StsSettings};
use node_attestation_aws::verifier::AwsClients;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::metrics::Metrics;

use crate::error::{BoxError, explain};
use crate::file;

pub(crate) use self::tenancy::TenancyArguments;

use self::tenancy::Tenants;

/// The maximum size of a file, in bytes. This is enough for hundreds of certificates.
const MAX_FILE_LEN: usize = 1024 * 1024;

/// The variable that makes the SDK call FIPS endpoints.
const USE_FIPS: &str = "AWS_USE_FIPS_ENDPOINT";

/// The signers and the endpoints for instances. They never come from a resource of a tenant.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "AWS")]
pub(crate) struct AwsArguments {
    /// Additional AWS document signing certificates, for new or isolated regions
    #[arg(long, value_name = "FILE")]
    aws_extra_signers: Option<PathBuf>,
    /// Version of instance identity documents, in addition to 2017-09-30 and 2010-08-31. Use this option when AWS
    /// documents a new version whose fields have the same meaning
    #[arg(long = "aws-extra-document-version", value_name = "VERSION", value_parser = document_version)]
    aws_extra_document_versions: Vec<String>,
    /// STS host for a region, instead of its public endpoint: for FIPS or VPC endpoints. The nodes in the region need
    /// the same setting
    #[arg(long = "aws-sts-endpoint", value_name = "REGION=HOST", value_parser = sts_endpoint)]
    aws_sts_endpoints: Vec<(String, EndpointHost)>,
    /// EC2 URL for a region, instead of its public endpoint
    #[arg(long = "aws-ec2-endpoint", value_name = "REGION=URL", value_parser = ec2_endpoint)]
    aws_ec2_endpoints: Vec<(String, String)>,
    /// PEM file with CA certificates for the STS endpoints of --aws-sts-endpoint, in addition to the CA certificates of
    /// the system
    #[arg(long, value_name = "FILE")]
    aws_endpoint_ca: Option<PathBuf>,
    #[command(flatten)]
    tenancy: TenancyArguments,
    /// Accept sessions of this role, given as ROLE or ACCOUNT:ROLE, as evidence. A principal that can assume the role
    /// can join as any instance that has the role
    #[arg(
        long = "aws-allow-instance-profile",
        value_name = "ROLE",
        help_heading = "AWS"
    )]
    aws_instance_profiles: Vec<ProfileRole>,
}

/// The parts of the AWS clients that do not need credentials.
#[derive(Debug)]
pub(crate) struct AwsParts {
    signers: Signers,
    sts: Sts,
    ec2: Ec2Settings,
    own: Arc<DefaultChain>,
    /// The STS URLs, keyed by region.
    sts_urls: BTreeMap<String, String>,
    /// The client for these URLs, if they have a separate CA.
    sts_client: Option<SharedHttpClient>,
    tenancy: TenancyArguments,
    metrics: Metrics,
}

/// Trust anchors and clients for AWS, which all clusters share.
#[derive(Debug, Clone)]
pub(crate) struct Aws {
    pub(crate) clients: Arc<AwsClients>,
    pub(crate) instances: Instances,
    pub(crate) tpms: NitroTpms,
    /// The identities of Clusters. `None` without a management cluster.
    pub(crate) tenants: Option<Tenants>,
}

/// A missing prerequisite for STS calls on this host. Only clusters on AWS are affected.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub(crate) struct AwsUnavailable(pub(crate) Arc<InvalidStsSettings>);

/// The reason why the AWS clients are missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AwsError {
    /// An option or its file is invalid.
    #[error(transparent)]
    Invalid(#[from] BoxError),
    /// STS cannot be called from this host.
    #[error(transparent)]
    Unavailable(#[from] AwsUnavailable),
}

impl AwsArguments {
    /// Reads the files and creates the clients. Makes no network calls.
    pub(crate) fn open(self, metrics: Metrics) -> Result<AwsParts, AwsError> {
        let authorities = self.aws_endpoint_ca.as_deref();
        let authorities = authorities
            .map(|path| file::read("--aws-endpoint-ca", path, MAX_FILE_LEN))
            .transpose()?;
        let signers = signers(
            self.aws_extra_signers.as_deref(),
            &self.aws_extra_document_versions,
        )?;
        for role in &self.aws_instance_profiles {
            let role = role.to_string();
            tracing::warn!(
                role,
                "sessions of this role are accepted as instances: make sure that only EC2 can assume the role"
            );
        }
        let use_fips = env::var(USE_FIPS).ok();
        if let Some(why) = fips_warning(use_fips.as_deref(), !self.aws_sts_endpoints.is_empty()) {
            tracing::warn!("{why}");
        }
        let proxy = proxy();
        let endpoints: BTreeMap<_, _> = self.aws_sts_endpoints.into_iter().collect();
        let url =
            |(region, host): (&String, &EndpointHost)| (region.clone(), format!("https://{host}"));
        let sts_urls = endpoints.iter().map(url).collect();
        let sts_client = authorities
            .clone()
            .map(|pem| proxy.http_client_trusting(pem));
        let sts = Sts::new(StsSettings {
            endpoints,
            authorities,
            roles: self.aws_instance_profiles,
            proxy: proxy.clone(),
        });
        let path = self.aws_endpoint_ca.unwrap_or_default();
        let sts = match sts {
            Ok(sts) => sts.measured_by(metrics.clone()),
            Err(error) => {
                use InvalidStsSettings::{Authorities, NoAuthorities, Proxy, Region};
                if matches!(error, NoAuthorities | Proxy(_)) {
                    return Err(AwsUnavailable(Arc::new(error)).into());
                }
                let what = if matches!(error, Authorities) {
                    format!("--aws-endpoint-ca {}", path.display())
                } else if matches!(error, Region { .. }) {
                    "--aws-sts-endpoint".to_owned()
                } else {
                    "cannot call STS".to_owned()
                };
                return Err(explain(what)(error).into());
            }
        };
        let ec2 = Ec2Settings {
            endpoints: self.aws_ec2_endpoints.into_iter().collect(),
        };
        Ok(AwsParts {
            signers,
            sts,
            ec2,
            own: Arc::new(DefaultChain::new(proxy)),
            sts_urls,
            sts_client: sts_client.and_then(Result::ok),
            tenancy: self.tenancy,
            metrics,
        })
    }
}

impl AwsParts {
    /// Creates clients that use the controller's credentials.
    pub(crate) fn own(self) -> Aws {
        let metrics = &self.metrics;
        let instances = Instances::measured(self.own.clone(), self.ec2.clone(), metrics);
        Aws {
            clients: Arc::new(AwsClients::new(self.signers, self.sts, instances.clone())),
            instances,
            tpms: NitroTpms::measured(self.own, self.ec2, metrics),
            tenants: None,
        }
    }

    /// Creates clients that use each Cluster's own credentials, for the Clusters in this management cluster. The
    /// returned future runs the background work, and never ends.
    pub(crate) fn tenants(
        self,
        management: &ClusterAccess,
        namespace: Option<&str>,
    ) -> Result<(Aws, impl Future<Output = ()> + Send + use<>), BoxError> {
        let (tenants, work) = self.tenancy.open(
            management,
            namespace,
            self.own,
            self.sts_urls,
            self.sts_client,
            &self.metrics,
        )?;
        let source = tenants.credentials.clone();
        let metrics = &self.metrics;
        let instances = Instances::measured(source.clone(), self.ec2.clone(), metrics);
        let clients = AwsClients::new(self.signers, self.sts, instances.clone());
        let aws = Aws {
            clients: Arc::new(clients.with_tenants(source.clone())),
            instances,
            tpms: NitroTpms::measured(source, self.ec2, metrics),
            tenants: Some(tenants),
        };
        Ok((aws, work))
    }
}

impl Aws {
    /// Creates clients that make no network calls, for explanations.
    pub(crate) fn offline(
        extra_signers: Option<&Path>,
        extra_versions: &[String],
    ) -> Result<Self, BoxError> {
        let signers = signers(extra_signers, extra_versions)?;
        Self::without_sts(Arc::new(NoCredentials), Ec2Settings::default(), signers)
    }

    /// Creates clients that call EC2 at these endpoints with the operator's credentials, for predictions.
    pub(crate) fn of_operator(endpoints: Vec<(String, String)>) -> Result<Self, BoxError> {
        let endpoints = endpoints.into_iter().collect();
        let source = Arc::new(DefaultChain::new(proxy()));
        Self::without_sts(source, Ec2Settings { endpoints }, signers(None, &[])?)
    }

    fn without_sts(
        source: Arc<dyn CredentialsSource>,
        ec2: Ec2Settings,
        signers: Signers,
    ) -> Result<Self, BoxError> {
        let instances = Instances::new(source.clone(), ec2.clone());
        let clients = AwsClients::new(signers, Sts::offline()?, instances.clone());
        Ok(Self {
            clients: Arc::new(clients),
            instances,
            tpms: NitroTpms::new(source, ec2),
            tenants: None,
        })
    }
}

fn signers(extra: Option<&Path>, extra_versions: &[String]) -> Result<Signers, BoxError> {
    const OPTION: &str = "--aws-extra-signers";
    let signers = Signers::embedded().with_versions(extra_versions);
    let Some(path) = extra else {
        return Ok(signers);
    };
    let file = file::read(OPTION, path, MAX_FILE_LEN)?;
    let signers = signers.with_file(&String::from_utf8_lossy(&file));
    signers.map_err(explain(format!("{OPTION} {}", path.display())))
}

/// The proxy settings in the environment. As in curl, the lower-case name takes precedence.
fn proxy() -> Proxy {
    let either = |lower, upper| env::var(lower).or_else(|_| env::var(upper)).ok();
    Proxy {
        https: either("https_proxy", "HTTPS_PROXY"),
        no: either("no_proxy", "NO_PROXY"),
    }
}

/// The warning about FIPS endpoints. The SDK uses them for its calls. They are not used for the nodes'
/// `GetCallerIdentity` calls, because the node signs the STS host.
fn fips_warning(use_fips: Option<&str>, has_endpoints: bool) -> Option<&'static str> {
    let is_on = use_fips.is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    (is_on && !has_endpoints).then_some(
        "AWS_USE_FIPS_ENDPOINT applies to EC2 and to AssumeRole, but not to GetCallerIdentity for nodes: \
         set --aws-sts-endpoint REGION=HOST for each region, and aws.stsEndpoint on its nodes",
    )
}

/// Parses a document version. AWS uses dates, but other formats are accepted for future versions.
pub(crate) fn document_version(text: &str) -> Result<String, String> {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if (1..=32).contains(&text.len()) && text.chars().all(is_kept) {
        Ok(text.to_owned())
    } else {
        Err("must be the value of the field version in a document, such as 2017-09-30".to_owned())
    }
}

fn sts_endpoint(text: &str) -> Result<(String, EndpointHost), String> {
    let (region, host) = of_region(text)?;
    let host = host
        .parse()
        .map_err(|error: InvalidHost| error.to_string())?;
    Ok((region, host))
}

pub(crate) fn ec2_endpoint(text: &str) -> Result<(String, String), String> {
    let (region, url) = of_region(text)?;
    let host = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() => Ok((region, url.to_owned())),
        Some(_) | None => Err("must be a URL with a host".to_owned()),
    }
}

fn of_region(text: &str) -> Result<(String, &str), String> {
    match text.split_once('=') {
        Some((region, endpoint)) if is_region(region) => Ok((region.to_owned(), endpoint)),
        Some((region, _)) => Err(format!("{region:?} is not a region")),
        None => Err("must be REGION=ENDPOINT".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sts_endpoint_option_needs_a_region_and_a_host() {
        let (region, host) = sts_endpoint("eu-west-1=sts-fips.eu-west-1.amazonaws.com").unwrap();
        assert_eq!(region, "eu-west-1");
        assert_eq!(host.as_str(), "sts-fips.eu-west-1.amazonaws.com");

        let no_host = "must contain only a lower-case host name, and a port if it is not 443";
        for (wrong, reason) in [
            ("sts.eu-west-1.amazonaws.com", "must be REGION=ENDPOINT"),
            ("eu=sts.eu-west-1.amazonaws.com", "\"eu\" is not a region"),
            ("eu-west-1=", no_host),
            ("eu-west-1=https://sts.eu-west-1.amazonaws.com", no_host),
            ("eu-west-1=sts.eu-west-1.amazonaws.com/path", no_host),
        ] {
            assert_eq!(sts_endpoint(wrong).unwrap_err(), reason, "{wrong}");
        }
    }

    #[test]
    fn fips_endpoints_without_sts_endpoints_cause_a_warning() {
        for (use_fips, has_endpoints, warns) in [
            (Some("true"), false, true),
            (Some(" TRUE "), false, true),
            (Some("true"), true, false),
            (Some("false"), false, false),
            (Some(""), false, false),
            (None, false, false),
        ] {
            let warning = fips_warning(use_fips, has_endpoints);
            assert_eq!(warning.is_some(), warns, "{use_fips:?} {has_endpoints}");
        }
        let warning = fips_warning(Some("true"), false).unwrap();
        for part in [
            "AWS_USE_FIPS_ENDPOINT applies to EC2 and to AssumeRole, but not to GetCallerIdentity for nodes: ",
            "--aws-sts-endpoint REGION=HOST",
            "aws.stsEndpoint",
        ] {
            assert!(warning.contains(part), "{warning}");
        }
    }

    #[test]
    fn a_document_version_that_is_not_a_short_word_is_refused() {
        assert_eq!(document_version("2031-01-01").unwrap(), "2031-01-01");
        for wrong in ["", "2031 01", "2031-01-01\n", &"1".repeat(33)] {
            assert_eq!(
                document_version(wrong).unwrap_err(),
                "must be the value of the field version in a document, such as 2017-09-30",
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn an_ec2_endpoint_that_is_not_a_url_is_refused() {
        let (region, url) = ec2_endpoint("eu-west-1=https://vpce-1.ec2.example").unwrap();
        assert_eq!(
            (&*region, &*url),
            ("eu-west-1", "https://vpce-1.ec2.example")
        );

        for (wrong, reason) in [
            ("eu-west-1=vpce-1.ec2.example", "must be a URL with a host"),
            ("eu-west-1=https://", "must be a URL with a host"),
            ("https://a", "must be REGION=ENDPOINT"),
        ] {
            assert_eq!(ec2_endpoint(wrong).unwrap_err(), reason, "{wrong}");
        }
    }
}
