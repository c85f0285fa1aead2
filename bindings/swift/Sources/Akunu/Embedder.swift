import CAkunu
import Foundation

/// A model that turns texts into vectors.
public final class Embedder: @unchecked Sendable {
    let handle: OpaquePointer
    /// Dimensions of a vector.
    public let width: Int
    /// Maximum tokens of a text.
    public let longest: Int

    public enum Pooling: UInt32, Sendable {
        /// As the model's files say.
        case model, mean, cls, last
    }

    /// Loads an encoder, or with a pooling any other model. Without a path: the small model in the library.
    public init(
        path: String? = nil, device: String = "auto", pooling: Pooling = .model, truncate: Bool = false,
        progress: Progress? = nil
    ) throws {
        var made: OpaquePointer?
        try Listener<(UInt64, UInt64) -> Bool>({ progress?($0, $1) ?? true }).withPointer { user in
            try device.withCString { device in
                var load = akunu_embed_options()
                load.size = size(akunu_embed_options.self)
                load.device = device
                load.pooling = pooling.rawValue
                load.truncate = truncate ? 1 : 0
                load.on_progress = progress == nil ? nil : forwardProgress
                load.progress_user = user
                try withText(path) { try check(akunu_load_embedder($0, &load, &made)) }
            }
        }
        var (width, longest): (UInt32, UInt32) = (0, 0)
        handle = made!
        _ = akunu_embedding_width(handle, &width, &longest)
        (self.width, self.longest) = (Int(width), Int(longest))
    }

    deinit {
        let handle = Handle(handle)
        release { akunu_free_embedder(handle.pointer) }
    }

    /// The vector of each text, of length 1.
    public func embed(_ texts: [String]) throws -> [[Float]] {
        guard !texts.isEmpty else { return [] }
        var vectors = [Float](repeating: 0, count: texts.count * width)
        var length = 0
        try withTexts(texts) { pointers in
            try check(akunu_embed(handle, pointers, texts.count, &vectors, vectors.count, &length))
        }
        return texts.indices.map { Array(vectors[$0 * width..<($0 + 1) * width]) }
    }

    /// As `embed`, on a thread of its own.
    public func vectors(_ texts: [String]) async throws -> [[Float]] {
        try await onThread { try self.embed(texts) }
    }
}
