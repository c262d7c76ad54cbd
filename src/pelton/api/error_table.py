"""Every error of the JetStream API, as data: constant name to (code, err_code, text).

`code` is an HTTP status (400 your request, 404 not found, 500 and 503 the server), `err_code` names the error for
programs, the text is for people and holds ``{placeholders}``. Facts of the protocol (ADR-7), ordered by
`err_code`; `errors.py` turns a row into an exception.
"""

from collections.abc import Iterator
from typing import Final

_TABLE: Final = """\
400 10002 JSAccountResourcesExceededErr resource limits exceeded for account
400 10003 JSBadRequestErr bad request
503 10004 JSClusterIncompleteErr incomplete results
400 10005 JSClusterNoPeersErrF {err}
500 10006 JSClusterNotActiveErr JetStream not in clustered mode
500 10007 JSClusterNotAssignedErr JetStream cluster not assigned to this server
503 10008 JSClusterNotAvailErr JetStream system temporarily unavailable
500 10009 JSClusterNotLeaderErr JetStream cluster can not handle request
503 10010 JSClusterRequiredErr JetStream clustering support required
400 10011 JSClusterTagsErr tags placement not supported for operation
500 10012 JSConsumerCreateErrF {err}
400 10013 JSConsumerNameExistErr consumer name already in use
404 10014 JSConsumerNotFoundErr consumer not found
400 10015 JSSnapshotDeliverSubjectInvalidErr deliver subject not valid
400 10016 JSConsumerDurableNameNotInSubjectErr consumer expected to be durable but no durable name set in subject
400 10017 JSConsumerDurableNameNotMatchSubjectErr consumer name in subject does not match durable name in request
400 10018 JSConsumerDurableNameNotSetErr consumer expected to be durable but a durable name was not set
400 10019 JSConsumerEphemeralWithDurableInSubjectErr consumer expected to be ephemeral but detected a durable name \
set in subject
400 10020 JSConsumerEphemeralWithDurableNameErr consumer expected to be ephemeral but a durable name was set in request
400 10021 JSStreamExternalApiOverlapErrF stream external api prefix {prefix} must not overlap with {subject}
400 10022 JSStreamExternalDelPrefixOverlapsErrF stream external delivery prefix {prefix} overlaps with stream subject \
{subject}
503 10023 JSInsufficientResourcesErr insufficient resources
400 10024 JSStreamInvalidExternalDeliverySubjErrF stream external delivery prefix {prefix} must not contain wildcards
400 10025 JSInvalidJSONErr invalid JSON: {err}
400 10026 JSMaximumConsumersLimitErr maximum consumers limit reached
400 10027 JSMaximumStreamsLimitErr maximum number of streams reached
500 10028 JSMemoryResourcesExceededErr insufficient memory resources available
500 10029 JSMirrorConsumerSetupFailedErrF {err}
400 10030 JSMirrorMaxMessageSizeTooBigErr stream mirror must have max message size >= source
400 10031 JSMirrorWithSourcesErr stream mirrors can not also contain other sources
400 10032 JSMirrorWithStartSeqAndTimeErr stream mirrors can not have both start seq and start time configured
400 10033 JSMirrorWithSubjectFiltersErr stream mirrors can not contain filtered subjects
400 10034 JSMirrorWithSubjectsErr stream mirrors can not contain subjects
503 10035 JSNoAccountErr account not found
503 10036 JSClusterUnSupportFeatureErr not currently supported in clustered mode
404 10037 JSNoMessageFoundErr no message found
400 10038 JSNotEmptyRequestErr expected an empty request payload
503 10039 JSNotEnabledForAccountErr JetStream not enabled for account
400 10040 JSClusterPeerNotMemberErr peer not a member
500 10041 JSRaftGeneralErrF {err}
500 10042 JSRestoreSubscribeFailedErrF JetStream unable to subscribe to restore snapshot {subject}: {err}
400 10043 JSSequenceNotFoundErrF sequence {seq} not found
400 10044 JSClusterServerNotMemberErr server is not a member of the cluster
500 10045 JSSourceConsumerSetupFailedErrF {err}
400 10046 JSSourceMaxMessageSizeTooBigErr stream source must have max message size >= target
500 10047 JSStorageResourcesExceededErr insufficient storage resources available
500 10048 JSStreamAssignmentErrF {err}
500 10049 JSStreamCreateErrF {err}
500 10050 JSStreamDeleteErrF {err}
500 10051 JSStreamGeneralErrorF {err}
500 10052 JSStreamInvalidConfigF {err}
500 10053 JSStreamLimitsErrF {err}
400 10054 JSStreamMessageExceedsMaximumErr message size exceeds maximum allowed
400 10055 JSStreamMirrorNotUpdatableErr stream mirror configuration can not be updated
400 10056 JSStreamMismatchErr stream name in subject does not match request
500 10057 JSStreamMsgDeleteFailedF {err}
400 10058 JSStreamNameExistErr stream name already in use with a different configuration
404 10059 JSStreamNotFoundErr stream not found
400 10060 JSStreamNotMatchErr expected stream does not match
400 10061 JSStreamReplicasNotUpdatableErr Replicas configuration can not be updated
500 10062 JSStreamRestoreErrF restore failed: {err}
503 10063 JSStreamSequenceNotMatchErr expected stream sequence does not match
500 10064 JSStreamSnapshotErrF snapshot failed: {err}
400 10065 JSStreamSubjectOverlapErr subjects overlap with an existing stream
500 10066 JSStreamTemplateCreateErrF {err}
500 10067 JSStreamTemplateDeleteErrF {err}
404 10068 JSStreamTemplateNotFoundErr template not found
500 10069 JSStreamUpdateErrF {err}
400 10070 JSStreamWrongLastMsgIDErrF wrong last msg ID: {id}
400 10071 JSStreamWrongLastSequenceErrF wrong last sequence: {seq}
500 10072 JSTempStorageFailedErr JetStream unable to open temp storage for restore
400 10073 JSTemplateNameNotMatchSubjectErr template name in subject does not match request
500 10074 JSStreamReplicasNotSupportedErr replicas > 1 not supported in non-clustered mode
503 10075 JSPeerRemapErr peer remap failed
503 10076 JSNotEnabledErr JetStream not enabled
503 10077 JSStreamStoreFailedF {err}
400 10078 JSConsumerConfigRequiredErr consumer config required
400 10079 JSConsumerDeliverToWildcardsErr consumer deliver subject has wildcards
400 10080 JSConsumerPushMaxWaitingErr consumer in push mode can not set max waiting
400 10081 JSConsumerDeliverCycleErr consumer deliver subject forms a cycle
400 10082 JSConsumerMaxPendingAckPolicyRequiredErr consumer requires ack policy for max ack pending
400 10083 JSConsumerSmallHeartbeatErr consumer idle heartbeat needs to be >= 100ms
400 10084 JSConsumerPullRequiresAckErr consumer in pull mode requires explicit ack policy on workqueue stream
400 10085 JSConsumerPullNotDurableErr consumer in pull mode requires a durable name
400 10086 JSConsumerPullWithRateLimitErr consumer in pull mode can not have rate limit set
400 10087 JSConsumerMaxWaitingNegativeErr consumer max waiting needs to be positive
400 10088 JSConsumerHBRequiresPushErr consumer idle heartbeat requires a push based consumer
400 10089 JSConsumerFCRequiresPushErr consumer flow control requires a push based consumer
400 10090 JSConsumerDirectRequiresPushErr consumer direct requires a push based consumer
400 10091 JSConsumerDirectRequiresEphemeralErr consumer direct requires an ephemeral consumer
400 10092 JSConsumerOnMappedErr consumer direct on a mapped consumer
400 10093 JSConsumerFilterNotSubsetErr consumer filter subject is not a valid subset of the interest subjects
400 10094 JSConsumerInvalidPolicyErrF {err}
400 10095 JSConsumerInvalidSamplingErrF failed to parse consumer sampling configuration: {err}
500 10096 JSStreamInvalidErr stream not valid
400 10097 JSStreamHeaderExceedsMaximumErr header size exceeds maximum allowed of 64k
400 10098 JSConsumerWQRequiresExplicitAckErr workqueue stream requires explicit ack
400 10099 JSConsumerWQMultipleUnfilteredErr multiple non-filtered consumers not allowed on workqueue stream
400 10100 JSConsumerWQConsumerNotUniqueErr filtered consumer not unique on workqueue stream
400 10101 JSConsumerWQConsumerNotDeliverAllErr consumer must be deliver all on workqueue stream
400 10102 JSConsumerNameTooLongErrF consumer name is too long, maximum allowed is {max}
400 10103 JSConsumerBadDurableNameErr durable name can not contain '.', '*', '>'
500 10104 JSConsumerStoreFailedErrF error creating store for consumer: {err}
400 10105 JSConsumerExistingActiveErr consumer already exists and is still active
400 10106 JSConsumerReplacementWithDifferentNameErr consumer replacement durable config not the same
400 10107 JSConsumerDescriptionTooLongErrF consumer description is too long, maximum allowed is {max}
400 10108 JSConsumerWithFlowControlNeedsHeartbeats consumer with flow control also needs heartbeats
400 10109 JSStreamSealedErr invalid operation on sealed stream
500 10110 JSStreamPurgeFailedF {err}
500 10111 JSStreamRollupFailedF {err}
400 10112 JSConsumerInvalidDeliverSubject invalid push consumer deliver subject
400 10113 JSStreamMaxBytesRequired account requires a stream config to have max bytes set
400 10114 JSConsumerMaxRequestBatchNegativeErr consumer max request batch needs to be > 0
400 10115 JSConsumerMaxRequestExpiresTooSmall consumer max request expires needs to be >= 1ms
400 10116 JSConsumerMaxDeliverBackoffErr max deliver is required to be > length of backoff values
500 10117 JSStreamInfoMaxSubjectsErr subject details would exceed maximum allowed
500 10118 JSStreamOfflineErr stream is offline
500 10119 JSConsumerOfflineErr consumer is offline
400 10120 JSNoLimitsErr no JetStream default or applicable tiered limit present
400 10121 JSConsumerMaxPendingAckExcessErrF consumer max ack pending exceeds system limit of {limit}
400 10122 JSStreamMaxStreamBytesExceeded stream max bytes exceeds account limit max stream bytes
400 10123 JSStreamMoveAndScaleErr can not move and scale a stream in a single update
400 10124 JSStreamMoveInProgressErr stream move already in progress
400 10125 JSConsumerMaxRequestBatchExceededF consumer max request batch exceeds server limit of {limit}
400 10126 JSConsumerReplicasExceedsStream consumer config replica count exceeds parent stream
400 10127 JSConsumerNameContainsPathSeparatorsErr Consumer name can not contain path separators
400 10128 JSStreamNameContainsPathSeparatorsErr Stream name can not contain path separators
400 10129 JSStreamReconfigureNotInProgressErr stream reconfiguration not in progress
400 10130 JSStreamNameExistRestoreFailedErr stream name already in use, cannot restore
400 10131 JSConsumerCreateFilterSubjectMismatchErr Consumer create request did not match filtered subject from create \
subject
400 10132 JSConsumerCreateDurableAndNameMismatch Consumer Durable and Name have to be equal if both are provided
400 10133 JSReplicasCountCannotBeNegative replicas count cannot be negative
400 10134 JSConsumerReplicasShouldMatchStream consumer config replicas must match interest retention stream's replicas
400 10135 JSConsumerMetadataLengthErrF consumer metadata exceeds maximum size of {limit}
400 10136 JSConsumerDuplicateFilterSubjects consumer cannot have both FilterSubject and FilterSubjects specified
400 10137 JSConsumerMultipleFiltersNotAllowed consumer with multiple subject filters cannot use subject based API
400 10138 JSConsumerOverlappingSubjectFilters consumer subject filters cannot overlap
400 10139 JSConsumerEmptyFilter consumer filter in FilterSubjects cannot be empty
400 10140 JSSourceDuplicateDetected duplicate source configuration detected
400 10141 JSSourceInvalidStreamName sourced stream name is invalid
400 10142 JSMirrorInvalidStreamName mirrored stream name is invalid
400 10143 JSMirrorWithFirstSeqErr stream mirrors can not have first sequence configured
400 10144 JSSourceMultipleFiltersNotAllowed source with multiple subject transforms cannot also have a single subject \
filter
400 10145 JSSourceInvalidSubjectFilter source transform source: {err}
400 10146 JSSourceInvalidTransformDestination source transform: {err}
400 10147 JSSourceOverlappingSubjectFilters source filters can not overlap
400 10148 JSConsumerAlreadyExists consumer already exists
400 10149 JSConsumerDoesNotExist consumer does not exist
400 10150 JSMirrorMultipleFiltersNotAllowed mirror with multiple subject transforms cannot also have a single subject \
filter
400 10151 JSMirrorInvalidSubjectFilter mirror transform source: {err}
400 10152 JSMirrorOverlappingSubjectFilters mirror subject filters can not overlap
400 10153 JSConsumerInactiveThresholdExcess consumer inactive threshold exceeds system limit of {limit}
400 10154 JSMirrorInvalidTransformDestination mirror transform: {err}
400 10155 JSStreamTransformInvalidSource stream transform source: {err}
400 10156 JSStreamTransformInvalidDestination stream transform: {err}
400 10157 JSPedanticErrF pedantic mode: {err}
409 10158 JSStreamDuplicateMessageConflict duplicate message id is in process
400 10159 JSConsumerPriorityPolicyWithoutGroup Setting PriorityPolicy requires at least one PriorityGroup to be set
400 10160 JSConsumerInvalidPriorityGroupErr Provided priority group does not exist for this consumer
400 10161 JSConsumerEmptyGroupName Group name cannot be an empty string
400 10162 JSConsumerInvalidGroupNameErr Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed \
16 characters
503 10163 JSStreamExpectedLastSeqPerSubjectNotReady expected last sequence per subject temporarily unavailable
400 10164 JSStreamWrongLastSequenceConstantErr wrong last sequence
400 10165 JSMessageTTLInvalidErr invalid per-message TTL
400 10166 JSMessageTTLDisabledErr per-message TTL is disabled
429 10167 JSStreamTooManyRequests too many requests
400 10168 JSMessageIncrDisabledErr message counters is disabled
400 10169 JSMessageIncrMissingErr message counter increment is missing
400 10170 JSMessageIncrPayloadErr message counter has payload
400 10171 JSMessageIncrInvalidErr message counter increment is invalid
400 10172 JSMessageCounterBrokenErr message counter is broken
400 10173 JSMirrorWithCountersErr stream mirrors can not also calculate counters
400 10174 JSAtomicPublishDisabledErr atomic publish is disabled
400 10175 JSAtomicPublishMissingSeqErr atomic publish sequence is missing
400 10176 JSAtomicPublishIncompleteBatchErr atomic publish batch is incomplete
400 10177 JSAtomicPublishUnsupportedHeaderBatchErr atomic publish unsupported header used: {header}
400 10178 JSConsumerPushWithPriorityGroupErr priority groups can not be used with push consumers
400 10179 JSAtomicPublishInvalidBatchIDErr atomic publish batch ID is invalid
412 10180 JSStreamMinLastSeqErr min last sequence
400 10181 JSConsumerAckPolicyInvalidErr consumer ack policy invalid
400 10182 JSConsumerReplayPolicyInvalidErr consumer replay policy invalid
400 10183 JSConsumerAckWaitNegativeErr consumer ack wait needs to be positive
400 10184 JSConsumerBackOffNegativeErr consumer backoff needs to be positive
412 10185 JSRequiredApiLevelErr JetStream minimum api level required
400 10186 JSMirrorWithMsgSchedulesErr stream mirrors can not also schedule messages
400 10187 JSSourceWithMsgSchedulesErr stream source can not also schedule messages
400 10188 JSMessageSchedulesDisabledErr message schedules is disabled
400 10189 JSMessageSchedulesPatternInvalidErr message schedules pattern is invalid
400 10190 JSMessageSchedulesTargetInvalidErr message schedules target is invalid
400 10191 JSMessageSchedulesTTLInvalidErr message schedules invalid per-message TTL
400 10192 JSMessageSchedulesRollupInvalidErr message schedules invalid rollup
400 10193 JSStreamExpectedLastSeqPerSubjectInvalid missing sequence for expected last sequence per subject
500 10194 JSStreamOfflineReasonErrF stream is offline: {err}
500 10195 JSConsumerOfflineReasonErrF consumer is offline: {err}
400 10196 JSConsumerPriorityGroupWithPolicyNone consumer can not have priority groups when policy is none
400 10197 JSConsumerPinnedTTLWithoutPriorityPolicyNone PinnedTTL cannot be set when PriorityPolicy is none
400 10198 JSMirrorWithAtomicPublishErr stream mirrors can not also use atomic publishing
400 10199 JSAtomicPublishTooLargeBatchErrF atomic publish batch is too large: {size}
400 10200 JSAtomicPublishInvalidBatchCommitErr atomic publish batch commit is invalid
400 10201 JSAtomicPublishContainsDuplicateMessageErr atomic publish batch contains duplicate message id
400 10202 JSClusterServerMemberChangeInflightErr cluster member change is in progress
400 10203 JSMessageSchedulesSourceInvalidErr message schedules source is invalid
400 10204 JSConsumerInvalidResetErr invalid reset: {err}
400 10205 JSBatchPublishDisabledErr batch publish is disabled
400 10206 JSBatchPublishInvalidPatternErr batch publish pattern is invalid
400 10207 JSBatchPublishInvalidBatchIDErr batch publish ID is invalid
400 10208 JSBatchPublishUnknownBatchIDErr batch publish ID unknown
400 10209 JSMirrorWithBatchPublishErr stream mirrors can not also use batch publishing
429 10210 JSAtomicPublishTooManyInflight atomic publish too many inflight
429 10211 JSBatchPublishTooManyInflight batch publish too many inflight
400 10212 JSMessageSchedulesSchedulerInvalidErr message schedules invalid scheduler
400 10213 JSMirrorDurableConsumerCfgInvalid stream mirror consumer config is invalid
400 10214 JSMirrorConsumerRequiresAckFCErr stream mirror consumer requires flow control ack policy
400 10215 JSSourceDurableConsumerCfgInvalid stream source consumer config is invalid
400 10216 JSSourceDurableConsumerDuplicateDetected duplicate stream source consumer detected
400 10217 JSSourceConsumerRequiresAckFCErr stream source consumer requires flow control ack policy
400 10218 JSConsumerAckFCRequiresPushErr flow control ack policy requires a push based consumer
400 10219 JSConsumerAckFCRequiresFCErr flow control ack policy requires flow control
400 10220 JSConsumerAckFCRequiresMaxAckPendingErr flow control ack policy requires max ack pending
400 10221 JSConsumerAckFCRequiresNoAckWaitErr flow control ack policy requires unset ack wait
400 10222 JSConsumerAckFCRequiresNoMaxDeliverErr flow control ack policy requires unset max deliver
400 10223 JSMessageSchedulesTimeZoneInvalidErr message schedules time zone is invalid
400 10224 JSClusterRescueErr JetStream system rescue not applied: {err}
400 10225 JSConsumerStreamIdentityMismatchF consumer's stream identity does not match: {msg}
400 10226 JSStreamReconfigureInProgressErr stream reconfiguration already in progress
400 10227 JSMessageSourceHdrNotAllowedErr message stream source header is not allowed
"""


def _rows() -> Iterator[tuple[str, tuple[int, int, str]]]:
    for line in _TABLE.splitlines():
        code, err_code, name, text = line.split(" ", 3)
        yield name, (int(code), int(err_code), text)


ERRORS: Final = dict(_rows())
"""The code, the `err_code` and the text of each constant."""

NAMES: Final[dict[int, str]] = {err_code: name for name, (_, err_code, _) in ERRORS.items()}
"""The name of the constant for each `err_code`."""
