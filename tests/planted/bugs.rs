// The planted bugs: the guest that has each, its class, its name, and what it does. The name is the scheme of the URI, and of the file of
// the component: one component under many names. `escaped`: an audit planted it, and `kv-store check` did not find it. The guests include
// this table and so does `cargo xtask planted`; each defines `bugs!` for what it needs.

bugs! {
    files: Files {
        open:
            AcceptsOptions "accepts-options" "takes an option that it does not know",
            IgnoresParameters "ignores-parameters" "takes an unknown query parameter, and says nothing" escaped,
            ClearsAtOpen "clears-at-open" "removes all chunks when it is opened",
            OpensOnce "opens-once" "fails the second open of a directory",
            ChangesFeatures "changes-features" "answers other features from each instance";
        features:
            RefusesLong "refuses-long" "refuses chunks over 100,000 bytes and does not say so in its features",
            SharedByName "shared-by-name" "is `shared`, and has a directory for each instance";
        bytes:
            CutsLong "cuts-long" "cuts chunks after 65,536 bytes",
            TrimsZeros "trims-zeros" "cuts zeros from the end of a chunk",
            EmptyIsMissing "empty-is-missing" "answers `missing` for an empty chunk",
            SpoilsPages "spoils-pages" "changes the last byte of chunks of whole pages",
            PadsToEight "pads-to-eight" "pads chunks to 8 bytes with zeros";
        keys:
            CutsHashes "cuts-hashes" "uses the first 16 bytes of a hash",
            TrimsHashes "trims-hashes" "cuts zeros from the end of a hash",
            PadsHashes "pads-hashes" "pads hashes to 64 bytes with zeros",
            UnpaddedHex "unpadded-hex" "writes bytes of a hash as one or two hexadecimal digits",
            FoldsCase "folds-case" "writes names in lower case",
            CutsNames "cuts-names" "uses the first 200 bytes of a name",
            FlattensNames "flattens-names" "writes `_` for `/` in a name",
            TrimsNames "trims-names" "cuts spaces around a name",
            NormalizesNames "normalizes-names" "resolves `..` and `//` in a name",
            AsciiNames "ascii-names" "writes `?` for what is not ASCII in a name",
            RefusesDots "refuses-dots" "refuses names that begin with a dot",
            DropsControls "drops-controls" "leaves out control characters of a name",
            OneKeySpace "one-key-space" "keeps chunks and manifests under the same keys";
        batches:
            ShiftsItems "shifts-items" "stores the bytes of item n + 1 under hash n" escaped,
            ShiftsItemsBuffered "shifts-items-buffered" "the same, where the host gathers the chunks" escaped,
            SwapsAnswers "swaps-answers" "answers a put in the order of the last item first" escaped,
            StaleExisted "stale-existed" "answers `existed` for what this instance has stored once" escaped,
            ReversesGets "reverses-gets" "answers a get in the order of the last item first",
            AllIfOne "all-if-one" "says that a whole batch is present if one of it is",
            DropsBeyondEight "drops-beyond-eight" "stores 8 items of a batch, and answers `stored` for all",
            RemovesFirstOnly "removes-first-only" "removes the first item of a batch, and answers `gone` for all",
            AbsentBeyondEight "absent-beyond-eight" "says `absent` of all items after the eighth",
            ExistedFailsBatch "existed-fails-batch" "fails a whole put if one of its chunks is there",
            LosesLast "loses-last" "does not store the last item of a batch of two or more",
            WrongLength "wrong-length" "answers `present` with a length that is one too long",
            WidthEight "width-eight" "takes every hash for one of 8 bytes",
            FirstLength "first-length" "stores each item with the length of the first",
            MissFailsBatch "miss-fails-batch" "fails a whole get if one of its chunks is missing";
        misses:
            FailsMisses "fails-misses" "answers a miss as `failed`" escaped,
            UnavailableMisses "unavailable-misses" "answers a miss as `unavailable`" escaped,
            FailsManifestMisses "fails-manifest-misses" "answers the miss of a manifest as an error" escaped,
            EmptyForMiss "empty-for-miss" "answers a miss with an empty chunk",
            CorruptForMiss "corrupt-for-miss" "answers a miss as `corrupt`",
            EmptyForManifestMiss "empty-for-manifest-miss" "answers the miss of a manifest with an empty one",
            FailsAbsentManifest "fails-absent-manifest" "fails to remove a manifest that is not there",
            PresentForMiss "present-for-miss" "says that an absent chunk is present";
        replace:
            IgnoresReplace "ignores-replace" "keeps what exists, and answers `stored`, whatever `replace` says" escaped,
            ReplaceExisted "replace-existed" "keeps what exists, and answers `existed`, whatever `replace` says",
            ReplacesInSteps "replaces-in-steps" "removes what it replaces, and writes it a moment later",
            ReplacesOtherLength "replaces-other-length" "replaces only what has another length";
        commit:
            PublishesOverGone "publishes-over-gone" "publishes though chunks of `fresh` are gone" escaped,
            ChecksFirstFresh "checks-first-fresh" "looks at the first chunk of `fresh` only" escaped,
            NeedsManifest "needs-manifest" "fails a commit without a manifest" escaped,
            NeverSyncs "never-syncs" "is `durable`, and never syncs" escaped,
            SyncsFirstFresh "syncs-first-fresh" "is `durable`, and syncs the first chunk of `fresh` only",
            SyncsLate "syncs-late" "is `durable`, and syncs the chunks after it has published",
            VolatileManifest "volatile-manifest" "is `durable`, and does not sync the manifest",
            FirstWidthOnly "first-width-only" "looks at the first list of `fresh` only",
            AbsentNamesAll "absent-names-all" "names all of `fresh` as absent where one chunk is",
            PublishesAbsent "publishes-absent" "answers `absent`, and publishes all the same",
            TearsManifests "tears-manifests" "writes a manifest in two steps",
            KeepsOldManifest "keeps-old-manifest" "does not replace a manifest",
            CutsManifests "cuts-manifests" "cuts manifests after 4,096 bytes",
            NeedsFresh "needs-fresh" "fails a commit without fresh chunks",
            CollectsOthers "collects-others" "removes all chunks that are not fresh",
            RefusesManyFresh "refuses-many-fresh" "fails a commit of more than 100 fresh chunks",
            PublishesLate "publishes-late" "publishes a manifest with the next call";
        delete:
            RemovesOthers "removes-others" "removes other chunks too" escaped,
            RefusesAbsent "refuses-absent" "fails to remove a chunk that is not there" escaped,
            KeepsDamaged "keeps-damaged" "answers `gone`, and removes nothing",
            NeverAgain "never-again" "does not store a chunk again that it has removed",
            HidesRemoved "hides-removed" "hides removed chunks from `exists`, and answers `existed` to a put",
            KeepsManifest "keeps-manifest" "removes no manifest",
            ManifestTakesChunks "manifest-takes-chunks" "removes all chunks with a manifest",
            ManifestTakesOthers "manifest-takes-others" "removes the manifests whose names begin with the name";
        instances:
            CachesManifests "caches-manifests" "answers manifests that it has seen out of its memory",
            RemembersAbsent "remembers-absent" "remembers what `exists` did not find",
            RemembersMisses "remembers-misses" "remembers what a get did not find",
            CachesChunks "caches-chunks" "answers chunks that it has seen out of its memory",
            KeepsInInstance "keeps-in-instance" "keeps chunks in the instance",
            WritesBehind "writes-behind" "writes chunks when four have come",
            SharedTemporary "shared-temporary" "writes each chunk by way of one file for all instances",
            IndexWithoutLock "index-without-lock" "keeps the names of manifests in a file that instances change at once";
        leaks:
            GrowsOnPut "grows-on-put" "keeps 64 KiB of linear memory for each put" escaped,
            KeepsPayloads "keeps-payloads" "keeps a payload of each put" escaped,
            LeaksDirectories "leaks-directories" "opens a directory in each get, and never drops it",
            LeaksReads "leaks-reads" "keeps a payload of each get",
            GrowsOnGet "grows-on-get" "keeps 64 KiB of linear memory for each get",
            GrowsOnCommit "grows-on-commit" "keeps 64 KiB of linear memory for each commit";
        time:
            AnswersSlowly "answers-slowly" "answers one item of a batch, after 50 ms",
            HangsAtHundred "hangs-at-hundred" "never ends the hundredth put of an instance";
        traps:
            TrapsOnEmpty "traps-on-empty" "traps on an empty chunk",
            TrapsOnLongName "traps-on-long-name" "traps on a name of over 1,000 bytes",
            TrapsOnLongHash "traps-on-long-hash" "traps on a hash of over 32 bytes",
            TrapsOnAbsent "traps-on-absent" "traps when it removes what is not there";
        listing:
            ListsShort "lists-short" "leaves the last entry out of each page",
            ListsInCircles "lists-in-circles" "begins the listing again at its end",
            ListsEightOnly "lists-eight-only" "lists only chunks with a hash of 8 bytes",
            ListsWrongSizes "lists-wrong-sizes" "lists each size as one byte more",
            ListsOverLimit "lists-over-limit" "has more entries on a page than were asked for",
            ListsKeys "lists-keys" "lists its own keys in place of the names",
            ListsByPosition "lists-by-position" "goes on by position, so that removed entries move the next page",
            ListsLostDigests "lists-lost-digests" "lists a long name as a digest by which nothing is found" escaped,
            ListsSeconds "lists-seconds" "lists times in seconds",
            CountsNothing "counts-nothing" "answers a usage of zero",
            CountsOnce "counts-once" "answers the usage that it counted first",
            CountsNoManifests "counts-no-manifests" "does not count manifests";
    }
    memory: Memory {
        evicting:
            EvictsChunksFirst "evicts-chunks-first" "evicts chunks before manifests" escaped,
            EvictsNewestFirst "evicts-newest-first" "evicts what was used last" escaped,
            EvictsByStored "evicts-by-stored" "evicts in the order of storing" escaped,
            IgnoresUnusedSince "ignores-unused-since" "evicts without regard to `unused-since`" escaped,
            EvictsFresh "evicts-fresh" "evicts without regard to `keep-since`",
            EvictsTooLittle "evicts-too-little" "evicts half of the bytes that were asked for, and says that there is no more",
            EvictsAll "evicts-all" "evicts everything that may go, whatever was asked for",
            CountsDouble "counts-double" "says that it has evicted twice the bytes",
            NeverEvictsChunks "never-evicts-chunks" "evicts manifests only",
            SaysEvicted "says-evicted" "says that it has evicted, and evicts nothing",
            AlwaysMore "always-more" "says that there is always more to evict",
            ExpiresAll "expires-all" "evicts everything that may go where `unused-since` is given",
            TakesUsedForUnused "takes-used-for-unused" "evicts what was used after `unused-since`";
        properties:
            EvictsAlone "evicts-alone" "is `evicts`, and does not look at `fresh`" escaped,
            RenewsNothing "renews-nothing" "is `evicts`, and does not renew what `fresh` names",
            ManyInstances "many-instances" "keeps everything in the instance, and does not say `holds-data`";
        listing:
            ListsRemoved "lists-removed" "lists chunks on that were removed",
            ListsNoManifests "lists-no-manifests" "lists no manifests",
            UsedIsStored "used-is-stored" "lists the time of storing as the time of use";
    }
    net: Net {
        network:
            PutsRefused "puts-refused" "takes the server's refusal of a put for success" escaped,
            CommitsRefused "commits-refused" "takes the server's refusal of a manifest for success" escaped,
            UnsyncedDurable "unsynced-durable" "is `durable`, and the server keeps nothing over a restart" escaped,
            MissesRefused "misses-refused" "takes the server's refusal of a get for a miss",
            RemovesRefused "removes-refused" "takes the server's refusal of a removal for success",
            MissesClosed "misses-closed" "takes a closed connection for a miss",
            PutsUnanswered "puts-unanswered" "answers `stored` before the server has answered",
            CommitsUnanswered "commits-unanswered" "answers `published` before the server has answered",
            KeepsBroken "keeps-broken" "goes on with a connection after a failure",
            GivesUp "gives-up" "makes no connection after a failure",
            WaitsOn "waits-on" "connects and asks again until the deadline",
            ParksUnread "parks-unread" "gives a connection back with an answer that it has not read",
            LeaksConnections "leaks-connections" "keeps each connection",
            OneSession "one-session" "uses one session for all databases of a server",
            SwapsReplies "swaps-replies" "takes the second reply of a batch for the first",
            PutsClosed "puts-closed" "answers `stored` when the connection is closed";
    }
    http: Http {
        network:
            HttpMissesRefused "http-misses-refused" "takes 403 for a miss",
            HttpMissesUnavailable "http-misses-unavailable" "takes 503 for a miss",
            HttpPutsRefused "http-puts-refused" "takes every status of a PUT for success",
            HttpCommitsRefused "http-commits-refused" "takes every status of the PUT of a manifest for success",
            HttpRemovesRefused "http-removes-refused" "takes every status of a DELETE for success",
            HttpRefusesAbsent "http-refuses-absent" "takes 404 of a DELETE for a failure",
            HttpGivesUp "http-gives-up" "makes no request after a failure",
            HttpKeepsDecoded "http-keeps-decoded" "writes names into paths without escapes",
            HttpRetries "http-retries" "repeats a failed request until the deadline";
    }
}
