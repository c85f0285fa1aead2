import CAkunu
import Foundation

/// What an answer has gained.
public enum Delta: Sendable, Equatable {
    case reasoning(String)
    case answer(String)
    /// A whole call of a tool; `arguments` is a JSON object.
    case toolCall(name: String, arguments: String, index: Int)

    init(_ delta: akunu_delta) {
        let text = Akunu.text(delta.text, delta.text_length)
        switch delta.kind {
        case 1: self = .reasoning(text)
        case 3: self = .toolCall(name: String(cString: delta.name), arguments: text, index: Int(delta.index))
        default: self = .answer(text)
        }
    }
}

typealias DeltaListener = Listener<(Delta) -> Bool>

let forwardDelta: akunu_on_delta = { delta, user in
    DeltaListener.at(user)(Delta(delta!.pointee)) ? AKUNU_CONTINUE : AKUNU_STOP
}

/// A conversation in a session, rendered with the model's chat template.
public final class Chat: @unchecked Sendable {
    public let session: Session
    /// Tools that the model may call, each JSON in the form of the OpenAI API.
    public let tools: [String]
    private let all: Shared<[String]>

    /// The messages so far, each JSON in the form of the OpenAI API.
    public var messages: [String] { all.with { $0 } }

    public init(_ session: Session, system: String? = nil, tools: [String] = []) {
        self.session = session
        self.tools = tools
        all = Shared(system.map { [Chat.message("system", $0)] } ?? [])
    }

    /// Generates the answer to a user's message. Both are added to the messages when the answer has ended, and neither
    /// if it fails, or is cancelled before its first token.
    public func send(_ text: String, _ limits: Limits = Limits()) -> Generation<Delta> {
        answer(to: [Chat.message("user", text)], limits)
    }

    /// Generates the next answer from the results of the tools that the last one calls, in the order of the calls.
    /// Results and answer are added as those of a user's message.
    public func send(results: [String], _ limits: Limits = Limits()) -> Generation<Delta> {
        answer(to: results.map { Chat.message("tool", $0) }, limits)
    }

    private func answer(to new: [String], _ limits: Limits) -> Generation<Delta> {
        let messages = self.messages + new
        var conversation = "{\"messages\": [\(messages.joined(separator: ","))]"
        conversation += tools.isEmpty ? "}" : ", \"tools\": [\(tools.joined(separator: ","))]}"
        let (session, all, text) = (session, all, conversation)
        let found = Shared<Stats?>(nil)
        let items = stream(cancel: { [weak session] in session?.cancel() }) { (add: @escaping (Delta) -> Bool) in
            var stats = Stats.empty
            var limits = limits
            let (format, schema) = limits.format.c
            limits.format = .text
            try DeltaListener(add).withPointer { user in
                try limits.withOptions { generate in
                    try withText(schema) { schema in
                        var options = akunu_answer_options()
                        options.size = size(akunu_answer_options.self)
                        options.format = format
                        options.schema = schema
                        try check(
                            akunu_generate_answer(
                                session.handle, text, &options, &generate, forwardDelta, user, &stats))
                    }
                }
            }
            if let message = try? filledText({ akunu_answer_message(session.handle, $0, $1, $2) }) {
                all.with { $0 += new + [message] }
            }
            found.with { $0 = Stats(stats) }
        }
        return Generation(items: items, found: found)
    }

    private static func message(_ role: String, _ content: String) -> String {
        let message = try? JSONSerialization.data(withJSONObject: ["role": role, "content": content])
        return String(decoding: message ?? Data(), as: UTF8.self)
    }
}

extension Generation where Item == Delta {
    /// The answer without reasoning and calls, when it is complete.
    public func answer() async throws -> String {
        try await reduce(into: "") { text, delta in
            if case .answer(let more) = delta { text += more }
        }
    }
}
