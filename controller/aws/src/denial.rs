//! The denials of the attestor `aws`: an instance identity document, a call of STS or an instance
//! contradicts the request.

use node_attestation_core::reasons;

reasons! {
    /// Why the evidence of an AWS instance is denied: one reason a check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub AwsDenial: EvidenceReason {
        /// The signed identity document is not base64 of one CMS message in the encoding that AWS
        /// sends, or exceeds its bounds.
        #[error("the signed identity document cannot be decoded: {0}")]
        DocumentUndecodable(&'static str) => "the signed identity document cannot be decoded",
        /// The CMS message is not signed data that carries the document itself.
        #[error("the signed identity document has another structure: {0}")]
        DocumentStructure(&'static str) => "the signed identity document has another structure than AWS sends",
        /// The CMS message has no signer, or several.
        #[error("the identity document has {0} signers, and exactly one is accepted")]
        DocumentSigners(usize) => "the identity document has not exactly one signer",
        /// The CMS message brings certificates or revocation lists. The signers are known, and taken
        /// from nobody.
        #[error("the signed identity document brings certificates")]
        DocumentCertificates => "the signed identity document brings certificates",
        /// The document is not signed with RSA-2048 and SHA-256.
        #[error("the identity document is not signed with RSA-2048 and SHA-256: {0}")]
        DocumentAlgorithm(&'static str) => "the identity document is not signed with RSA-2048 and SHA-256",
        /// The signed attributes are missing, repeated, or not about the document.
        #[error("the signed attributes of the identity document: {0}")]
        DocumentAttributes(&'static str) => "the signed attributes are not those of the identity document",
        /// The document is not the JSON object that AWS sends: a field missing, repeated, or of
        /// another type, another version, or bytes after its end.
        #[error("the identity document is malformed: {0}")]
        DocumentMalformed(String) => "the identity document is malformed",
        /// No signer of identity documents is known for the region. The manager takes more from a
        /// file.
        #[error("no signer of identity documents is known for region {0}")]
        RegionUnknown(String) => "no signer of identity documents is known for the region",
        /// The document names another signer than its region's.
        #[error("the identity document is not signed by the signer of region {0}")]
        DocumentSignerMismatch(String) => "the identity document is not signed by its region's signer",
        /// The signature does not verify with the key of the region's signer.
        #[error("the identity document's signature does not verify with the key of region {0}")]
        DocumentSignatureInvalid(String) => "the identity document's signature is not valid",
        /// The account is none of those that machines of this cluster may be in.
        #[error("the instance is in account {0}")]
        AccountNotAllowed(String) => "the instance is in an account that is not allowed here",
        /// The region is none of those that machines of this cluster may be in.
        #[error("the instance is in region {0}")]
        RegionNotAllowed(String) => "the instance is in a region that is not allowed here",
        /// The proof of possession was made for STS of another region than the document's, or for
        /// another endpoint.
        #[error("the proof of possession is for STS in {claimed}, and the instance is in {region}")]
        CallerRegionMismatch {
            /// The region that the evidence names for STS.
            claimed: String,
            /// The region of the document.
            region: String,
        } => "the proof of possession is for another region",
        /// The signature was seen before, with another key.
        #[error("the evidence was seen with another key")]
        EvidenceReplayed => "the evidence was used with another key",
        /// STS refuses the call: it was made for another request, with other credentials, or with
        /// credentials that are not valid.
        #[error("STS refuses the proof of possession: {0}")]
        CallerRefused(String) => "STS refuses the proof of possession",
        /// The caller of STS is not a role's session.
        #[error("the caller is {0}, which is not the session of a role")]
        CallerNotARole(String) => "the proof of possession is not an instance's",
        /// STS names the caller in two ways that do not agree: its ARN says another account or
        /// session than its account or its user ID.
        #[error("the caller is {arn}, and has the user ID {user_id}")]
        CallerAmbiguous {
            /// As STS names it.
            arn: String,
            /// Its user ID.
            user_id: String,
        } => "the proof of possession names its caller in two ways",
        /// The role is neither `aws:ec2-instance` nor one that the operator allows. Whoever may
        /// assume any other role can call its session what he likes.
        #[error("the caller's role is {0}, and only aws:ec2-instance is accepted")]
        CallerRoleNotAllowed(String) => "the proof of possession is not of the instance identity role",
        /// The caller is of another account than the document.
        #[error("the caller is of account {caller}, and the instance of {account}")]
        CallerOfAnotherAccount {
            /// The account that STS names.
            caller: String,
            /// The account of the document.
            account: String,
        } => "the proof of possession is another account's",
        /// The caller is of another partition than the region of the document.
        #[error("the caller is of partition {caller}, and the instance of {partition}")]
        CallerOfAnotherPartition {
            /// The partition that STS names.
            caller: String,
            /// The partition of the document's region.
            partition: String,
        } => "the proof of possession is another partition's",
        /// The caller is another instance than the document is about.
        #[error("the caller is {caller}, and the document is of {instance}")]
        CallerIsAnotherInstance {
            /// The session's name.
            caller: String,
            /// The instance of the document.
            instance: String,
        } => "the proof of possession is another instance's",
        /// EC2 has no such instance in the account and region, and it is not so young that EC2 might
        /// not know it yet.
        #[error("EC2 has no instance {0}")]
        InstanceNotFound(String) => "the instance does not exist",
        /// The instance is not running.
        #[error("instance {instance} is {state}")]
        InstanceNotRunning {
            /// The instance of the document.
            instance: String,
            /// Its state.
            state: String,
        } => "the instance is not running",
        /// EC2 says otherwise about the account, the zone or the launch of the instance than its
        /// document does.
        #[error("EC2 and the identity document, or the provider ID, disagree about the {1} of {0}")]
        InstanceContradictsDocument(String, &'static str) => "the instance is not as its identity document says",
        /// The document was made before the instance was last launched.
        #[error("the document of {0} is of an earlier launch")]
        DocumentOfEarlierLaunch(String) => "the identity document is of an earlier launch of the instance",
        /// The instance has no network interface 0, or no root volume that it should have.
        #[error("instance {0} has no {1}")]
        InstanceIncomplete(String, &'static str) => "the instance lacks its first network interface or its root volume",
        /// The root volume and the first network interface were attached at different times: one of
        /// them was another instance's. Asked at the first claim only.
        #[error("root volume and first network interface of {0} were attached {1} s apart")]
        RootVolumeMoved(String, u64) => "the root volume or the first network interface was moved here",
        /// A tag says that the instance is another cluster's, or none says that it is this one's, or
        /// a required tag is missing.
        #[error("instance {instance} does not have tag {tag} with the value that is required")]
        TagMismatch {
            /// The instance of the document.
            instance: String,
            /// The tag's key.
            tag: String,
        } => "the instance does not have the tags that are required here",
        /// EC2 has no name for the instance that could be a node's.
        #[error("instance {0} has no private DNS name that could be its node's")]
        InstanceNameless(String) => "the instance has no name that could be its node's",
    }
}
