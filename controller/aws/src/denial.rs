//! The denials of the attestor `aws`: an instance identity document, an STS call or an instance contradicts the
//! request.

use node_attestation_core::reasons;

reasons! {
    /// The reasons to deny the evidence of an AWS instance: one reason per check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub AwsDenial: EvidenceReason {
        /// The signed identity document is not a base64-encoded CMS message in the encoding that AWS uses, or exceeds
        /// the limits.
        #[error("the signed identity document cannot be decoded: {0}")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentUndecodable(&'static str) => "the signed identity document cannot be decoded",
        /// The CMS message is not signed data that contains the document itself.
        #[error("the signed identity document has an unexpected structure: {0}")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentStructure(&'static str) => "the signed identity document has an unexpected structure",
        /// The CMS message has no signer, or more than one.
        #[error("the identity document has {0} signers, but must have exactly one")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentSigners(usize) => "the identity document must have exactly one signer",
        /// The CMS message contains certificates or revocation lists. The controller accepts only the signers in its
        /// list.
        #[error("the signed identity document contains certificates")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentCertificates => "the signed identity document contains certificates",
        /// The document is not signed with RSA-2048 and SHA-256.
        #[error("the identity document is not signed with RSA-2048 and SHA-256: {0}")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentAlgorithm(&'static str) => "the identity document is not signed with RSA-2048 and SHA-256",
        /// The signed attributes are missing, repeated, or do not describe the document.
        #[error("the signed attributes of the identity document are invalid: {0}")]
        #[cure("Check that no other service answers at the metadata service's address.")]
        DocumentAttributes(&'static str) => "the signed attributes do not match the identity document",
        /// The document is not the JSON object that AWS sends: a field is missing, repeated or of the wrong type, the
        /// version is different, or there are trailing bytes.
        #[error("the identity document is malformed: {0}")]
        #[cure("If AWS documents a new version with the same fields, add it with `--aws-extra-document-version`.")]
        DocumentMalformed(String) => "the identity document is malformed",
        /// The controller has no AWS document signing certificate for the region.
        #[error("no AWS document signing certificate is known for region {0}")]
        #[cure("Add the certificate for the region with `--aws-extra-signers`.")]
        RegionUnknown(String) => "no AWS document signing certificate is known for the region",
        /// The document's signer does not match its region.
        #[error("the identity document is not signed with the certificate for region {0}")]
        #[cure("Add the certificate that AWS publishes for the region with `--aws-extra-signers`.")]
        DocumentSignerMismatch(String) => "the identity document is not signed with the certificate for its region",
        /// The signature does not match the key of the region's signer.
        #[error("the identity document's signature does not match the key of region {0}")]
        #[cure("Treat the request as an attack: the document was changed after AWS signed it.")]
        DocumentSignatureInvalid(String) => "the identity document's signature is not valid",
        /// The account of the instance is not allowed for the machines of this cluster.
        #[error("the instance is in account {0}, which is not allowed")]
        #[cure("Add the account to `spec.aws.accounts`, or correct the identity of the Cluster.")]
        AccountNotAllowed(String) => "the instance's account is not allowed",
        /// The region of the instance is not allowed for the machines of this cluster.
        #[error("the instance is in region {0}, which is not allowed")]
        #[cure("Add the region to `spec.aws.regions`, or correct the region of the `AWSCluster`.")]
        RegionNotAllowed(String) => "the instance's region is not allowed",
        /// The STS call was signed for a different endpoint, or for a region that does not match the document.
        #[error("the signed STS call is for {claimed}, but the instance is in {region}")]
        #[cure("Set the same STS endpoint in `aws.stsEndpoint` on the node and in the controller's \
                `--aws-sts-endpoint`.")]
        CallerRegionMismatch {
            /// The STS region in the evidence.
            claimed: String,
            /// The region of the document.
            region: String,
        } => "the region of the signed STS call does not match the instance",
        /// The same signature was used before with a different key.
        #[error("the evidence was already used with a different key")]
        #[cure("Treat the request as an attack: evidence of this instance was copied.")]
        EvidenceReplayed => "the evidence was already used with a different key",
        /// STS rejects the call. It was signed for another request, with different credentials, or with invalid
        /// credentials.
        #[error("STS rejects the signed call: {0}")]
        #[cure("Set the same STS endpoint in `aws.stsEndpoint` on the node and in the controller's \
                `--aws-sts-endpoint`.")]
        CallerRefused(String) => "STS rejects the signed call",
        /// The caller of STS is not a role session.
        #[error("the STS caller is {0}, which is not a role session")]
        #[cure("Identify the client from `spec.username` of the request. The plugin uses only the instance's role \
            credentials.")]
        CallerNotARole(String) => "the signed STS call does not come from an instance",
        /// The data from STS about the caller is contradictory: the account or session in the ARN does not match the
        /// account or the user ID.
        #[error("the ARN {arn} of the STS caller does not match its user ID {user_id}")]
        #[cure("Check that `--aws-sts-endpoint` specifies a genuine STS endpoint.")]
        CallerAmbiguous {
            /// As STS names it.
            arn: String,
            /// Its user ID.
            user_id: String,
        } => "the ARN of the STS caller does not match its user ID",
        /// The role is neither `aws:ec2-instance` nor a role that the operator allows. A principal that can assume
        /// another role can choose any session name.
        #[error("the role of the STS caller is {0}; only aws:ec2-instance is accepted")]
        #[cure("Remove `aws.principal: instanceProfile` on the node, or allow the role with \
                 `--aws-allow-instance-profile`.")]
        CallerRoleNotAllowed(String) => "the signed STS call does not come from the instance identity role",
        /// The caller and the document belong to different accounts.
        #[error("the STS caller belongs to account {caller}, but the instance belongs to {account}")]
        #[cure("Treat the request as an attack: the document and the credentials come from different instances.")]
        CallerOfAnotherAccount {
            /// The account that STS reports.
            caller: String,
            /// The account of the document.
            account: String,
        } => "the account of the STS caller does not match the instance",
        /// The caller and the region of the document belong to different partitions.
        #[error("the STS caller belongs to partition {caller}, but the instance belongs to {partition}")]
        #[cure("Treat the request as an attack: the document and the credentials come from different instances.")]
        CallerOfAnotherPartition {
            /// The partition that STS reports.
            caller: String,
            /// The partition of the document's region.
            partition: String,
        } => "the partition of the STS caller does not match the instance",
        /// The caller and the document belong to different instances.
        #[error("the STS caller is {caller}, but the identity document belongs to {instance}")]
        #[cure("Treat the request as an attack: the document and the credentials come from different instances.")]
        CallerIsAnotherInstance {
            /// The session's name.
            caller: String,
            /// The instance of the document.
            instance: String,
        } => "the STS caller is not the instance in the identity document",
        /// EC2 does not report the instance in the account and region, although the instance is not new.
        #[error("instance {0} does not exist in EC2")]
        #[cure("Give the controller credentials for the instances' account.")]
        InstanceNotFound(String) => "the instance does not exist",
        /// The instance is not running.
        #[error("instance {instance} is {state}")]
        #[cure("Start the instance, or delete its Machine.")]
        InstanceNotRunning {
            /// The instance of the document.
            instance: String,
            /// Its state.
            state: String,
        } => "the instance is not running",
        /// The account, zone or launch time that EC2 reports does not match the identity document or the provider ID.
        #[error("the {1} of {0} in EC2 does not match the identity document or the provider ID")]
        #[cure("Compare the Machine's `spec.providerID` with the instance in EC2. If the ID is correct, treat the \
                request as an attack.")]
        InstanceContradictsDocument(String, &'static str) => "the data from EC2 does not match the identity document",
        /// The document was created before the last launch of the instance.
        #[error("the identity document of {0} is from an earlier launch")]
        #[cure("Run `renew` on the node: the plugin then reads the current document.")]
        DocumentOfEarlierLaunch(String) => "the identity document is from an earlier launch of the instance",
        /// The instance has no network interface 0, or its root volume is not the expected volume.
        #[error("instance {0} has no {1}")]
        #[cure("Replace the instance. To skip the comparison of the root volume and the interface, set \
                 `rootVolumeCheck: false`.")]
        InstanceIncomplete(String, &'static str) => "the instance lacks its first network interface or its root volume",
        /// The root volume and the first network interface were attached at different times: one of them comes from
        /// another instance. The controller checks this only at the first join.
        #[error("the root volume and the first network interface of {0} were attached {1} s apart")]
        #[cure("Replace the instance, or set `rootVolumeCheck: false`.")]
        RootVolumeMoved(String, u64) => "the root volume or the first network interface was moved from another instance",
        /// A tag assigns the instance to another cluster, no tag assigns the instance to this cluster, or a required
        /// tag is missing.
        #[error("instance {instance} does not have tag {tag} with the required value")]
        #[cure("Add the ownership tag of the cluster, or the tags in `requiredTags`, to the instance.")]
        TagMismatch {
            /// The instance of the document.
            instance: String,
            /// The tag's key.
            tag: String,
        } => "the instance does not have the required tags",
        /// EC2 does not report a valid node name for the instance.
        #[error("EC2 does not report a private DNS name for instance {0} that is a valid node name")]
        #[cure("Set `spec.aws.nodeName: InstanceID`, and give the kubelet the same name.")]
        InstanceNameless(String) => "EC2 does not report a valid node name for the instance",
    }
}
