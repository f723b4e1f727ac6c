"""Function words of languages other than English, by ISO 639-1 code: words that carry no subject of their own.

Own lists, nearly all of it also in stopwords-iso (MIT). That collection itself is not used: it counts "trabajo", "Jahr"
or "Mensch" among the stop words, which are what a memory is about, and holds mis-encoded words.
"""

# ruff: noqa: RUF001 - letters of other scripts are meant

from __future__ import annotations

from typing import Final

LATIN: Final = {
    "de": "aber alle allem allen aller alles als also am an ander andere anderen auch auf aus bei beim bin bis bist "
    "da dabei damit dann das dass daß davon dazu dein deine deinem deinen deiner dem den denn der des dich die "
    "dies diese diesem diesen dieser dieses dir doch dort du durch ein eine einem einen einer eines er es etwas "
    "euch euer eure für gegen gewesen hab habe haben hat hatte hatten hier hin hinter ich ihm ihn ihnen ihr "
    "ihre ihrem ihren ihrer im in ins ist ja jede jedem jeden jeder jedes kann kein keine keinem keinen keiner "
    "können könnte machen man manche mein meine meinem meinen meiner mich mir mit muss müssen nach nicht nichts "
    "noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind so soll sollte "
    "sondern sonst über um und uns unser unsere unter vom von vor wann war waren warum was weil welche welchem "
    "welchen welcher welches wem wen wenn wer werde werden wessen wie wieder wird wo wollen wurde wurden "
    "während würde zu zum zur zwar zwischen",
    "es": "a al algo algunas algunos ante antes como con contra cual cuál cuáles cuando cuándo cuánto cuánta cuántos "
    "cuántas cómo de del desde donde dónde durante e el él ella ellas ellos en entre era eran eres es esa esas "
    "ese eso esos esta está están estaba estamos estar estas este esto estos estoy fue fueron ha había habían "
    "han hasta hay he la las le les lo los más me mi mí mis mucho muchos muy nada ni no nos nosotros nuestra "
    "nuestro o os otra otro otros para pero poco por porque que qué quien quién quiénes se sea ser si sí sido "
    "sin sobre somos son soy su sus también tanto te tiene tienen tengo tenía ti todo todos tu tú tus un una "
    "unas uno unos usted ya yo y",
    "fr": "à au aux avec avait avoir c'est ce ces cet cette comme d'un d'une dans de depuis des dont donc du elle "
    "elles en encore est es et était étaient été être eu eux fait il ils j'ai je la là le les leur leurs lui ma "
    "mais me même mes moi mon n'a n'est ne ni nos notre nous on ont ou où par pas plus pour pourquoi qu'elle "
    "qu'il qu'ils quand que quel quelle quelles quels qui quoi s'est sa sans se ses si son sont suis sur ta te "
    "tes toi ton tous tout toute toutes très tu un une vos votre vous y",
    "it": "a ad agli ai al alla alle allo anche avere aveva c'è che chi ci ciò come con cosa cui da dai dal dalla "
    "dalle degli dei del della delle dello di do dove e è ed era erano essere fu gli ha hai hanno ho i il in io "
    "la le lei li lo loro lui ma mi mia mie miei mio molto ne negli nei nel nella nelle nello noi non nostra "
    "nostro o ogni per perché però più poi quale quali quando quanta quante quanti quanto quella quelle quelli "
    "quello questa queste questi questo quindi se sei si sia siamo sono sta stato sua sue sugli sui sul sulla "
    "suo suoi ti tra tu tua tue tuo tuoi un una uno vi voi",
    "pt": "a à ao aos aquela aquele aquilo as às até com como da das de dela dele depois do dos e é ela elas ele eles "
    "em entre era eram essa esse esta está estão estava este estou eu foi foram há isso isto já lhe mais mas me "
    "mesmo meu meus minha minhas muito na nas não nem no nos nós nossa nosso num numa o onde os ou para pela "
    "pelas pelo pelos por porque porquê qual quais quando quanto quantos que quem são se sem ser seu seus só "
    "sobre sua suas também te tem têm tenho tinha tu tua um uma você vocês",
    "ca": "a al als amb aquest aquesta aquests això com d'un de del dels des el ella ells els em en ens entre era es "
    "és està estan et fins ha han hem hi ho i jo la les li lo m'ha meu meva molt més ni no nosaltres o on per "
    "perquè però què quan qui s'ha sense ser seu seva si són sobre també te té teu teva tot un una unes uns va "
    "vaig van vostè",
    "nl": "aan al alles als altijd andere ben bij daar dan dat de der deze die dit doch doen door dus een eens en er "
    "ge geen geweest haar had heb hebben heeft hem het hier hij hoe hun iemand iets ik in is ja je jij jou jouw "
    "jullie kan kon kunnen maar me meer men met mij mijn moet na naar niet niets nog nu of om omdat onder ons "
    "onze ook op over reeds te tegen toch toen tot u uit uw van veel voor waar waarom wanneer want waren was "
    "wat we welk welke werd wezen wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou",
    "pl": "a aby ale bardzo bez będzie by był była było były być ci cię co coś czy czym dla do dlaczego gdy gdzie go "
    "i ich ile im inne jak jaka jaki jakie jako je jego jej jest jestem jeszcze już ja każdy kiedy kto która "
    "które którego której którą którzy który ma mam mamy mi mną mnie moja moje mój mu my na nad nam nas nasz "
    "nic nich nie nim niż o od on ona one oni ono oraz pan pani po pod przed przez przy są się sobie swoje swój "
    "ta tak także tam te tego tej ten też to tobie trzeba tu twoja twoje twój ty tych tylko tym u w wam was we "
    "więc wszystko z za ze że żeby",
    "sv": "alla allt att av blev bli blir de dem den denna deras dess det detta dig din dina ditt du där då efter ej "
    "eller en er era ett från för ha hade han hans har henne hennes hon honom hur här i icke ingen inom inte "
    "jag ju kan kunde man med mellan men mig min mina mitt mot mycket ni nu när någon något några och om oss på "
    "samma sedan sig sin sina sitt skulle som så sådan till under upp ut utan vad var vara varför vem vi vid "
    "vilka vilken vilket vår åt är över",
    "da": "af alle anden at blev blive bliver da de den denne der deres det dette dig din disse dog du efter eller en "
    "end er et for fra ham han hans har havde have hende hendes her hos hun hvad hvem hvilken hvis hvor hvordan "
    "hvorfor hvornår i ikke ind ingen jeg jer jo kunne man mange med meget men mig min mine mit mod ned noget "
    "nogle nu når og også om op os over på selv sig sin skal skulle som sådan thi til ud under var vi vil ville "
    "vor være været",
    "no": "alle at av bare begge ble bli blir da de deg dem den denne der dere deres det dette din disse du eller en "
    "enn er et etter for fordi fra få ham han hans har hadde hennes her hos hun hva hvem hvilken hvis hvor "
    "hvordan hvorfor i ikke ingen jeg kan kunne kva man mange med meg mellom men min mine mitt mot mye no noe "
    "noen nå når og også om opp oss over på samme seg selv sin sine sitt skal skulle slik som så til um under "
    "ut uten var ved vi vil ville vår være vært",
    "fi": "ei eivät emme en et ette että he heidän hän hänen häntä ja jo joka jos jossa jotka kanssa kuin kuinka kuka "
    "kun me meidän mikä mikään miksi milloin minkä minua minulla minulle minun minä missä mistä mitkä mitä "
    "mukaan mutta myös ne niiden niin noin nyt oli olemme olen olet olisi olivat olla olin ollut on ovat se "
    "sekä sen siellä siihen sillä sinulla sinun sinä sitä tai te teidän tuo tämä tämän tässä tätä vaan vai vain "
    "vielä",
    "hu": "a abban ahhoz ahogy akik akkor alatt amely ami amikor annak arra az azok azon azt azért be benne de ebben "
    "egy egyik el elő előtt én engem ennek erre és ez ezek ezt ezért fel ha hanem hogy hogyan hol igen is itt "
    "jó kell ki kik kinek le lehet lesz lett ma már meg mely mert mi mikor milyen miért mint minden mit most "
    "nagyon nekem neki nem nincs olyan ott ő ők őt pedig sem semmi s sok szerint te tehát több új úgy után vagy "
    "vagyok van vannak volt voltam voltak",
    "et": "aga ei et ja jah kas kes kui kus ka ma me meie mida mis miks millal mina minu mu nad need nii ning nüüd "
    "olen oled oleme olete oli olid on ole pole sa see seda selle siin siis sina sinu ta tema te või väga",
    "lt": "ar arba aš be bei bet bus buvo dar dėl ir iš į jau ji jie jis jo jos jų kad kada kai kaip kas kodėl ko "
    "kuri kurie kuris kur labai man mano mes nes nei nėra ne nuo o po pas per prie su ta tai tas tau tavo ten "
    "tik to tu už yra visi",
    "cs": "a aby ale ani ano asi až bez bude budu být byl byla bylo byly by co což do ho i já jak jaká jaké jaký je "
    "jeho její jejich jen jenž jestli ještě již jí jsem jsi jsme jsou jste k kam kde kdo kdy když která které "
    "který kteří ku má mám mají mě mezi mi mít mně moje můj my na nad nám nás náš ne nebo nebyl než nic není o "
    "od on ona oni po pod podle pokud pouze pro proč proto protože před přes při s se si skoro své svůj ta tak "
    "také takže tam tato te tedy ten tento ti to toho tom tomu tu ty už v ve více však vy z za ze že",
    "ro": "a acea aceasta această acest acesta aceste acum ai aici al ale am ar are aș asta au avea că care când cât "
    "ce cea cel cei cine cu cum da dar de decât deci despre din după e ea ei el ele era este eu fi fie foarte "
    "fost i-a iar în între îi îmi își la le lor lui l-a m-am mai mea mei meu mi-a mult ne nici nimic niște noi "
    "noastră nostru nu o pe pentru peste prin sa să sale său se si și spre sub sunt sunteți ta te tău toate tot "
    "toți tu un una unde unei unele unor unui va voi vor vă",
    "tr": "acaba ama ancak artık aslında az bana bazı belki ben benden beni benim beri bile bir biraz biri biz bize "
    "bizi bizim bu buna bunda bundan bunu bunun çok çünkü da daha de defa değil diye en fakat gibi göre hem hep "
    "hepsi her hiç için ile ise kadar ki kim kimi mi mı mu mü nasıl ne neden nerede niçin niye o olan olarak "
    "oldu olduğu olduğunu on ona ondan onlar onun sana sanki sen senin siz sizin sonra şey şu tüm var ve veya "
    "ya yani yok",
    "id": "ada adalah agar akan aku anda apa apakah atau bagaimana bagi bahwa bisa bukan dalam dan dapat dari dengan "
    "di dia ini itu juga kalau kami kamu kapan karena kau ke kepada ketika kita lagi lalu lebih maka mana masih "
    "mengapa mereka namun nya oleh pada para saat saja sangat saya sebagai sebuah sedang sejak seperti serta "
    "siapa sudah telah tentang tetapi tidak untuk yaitu yang",
}
"""In the order in which a tie between two of them is decided."""

OTHER: Final = {
    "ru": "а без более больше был была были было быть в вам вас весь во вот все всего всех всю вы где да даже два для "
    "до его ее если есть еще ж же за здесь и из или им их к как какая какой какие какое ко когда который "
    "которая которые кто куда ли между меня мне много может мой моя мы на над надо нас не него нее ней нет ни "
    "нибудь никогда ним них ничего но ну о об один он она они от очень перед по под после потом потому почему "
    "при про с сам свою себе себя сейчас со тебя тем теперь то тогда того тоже только том тот ты у уж уже хоть "
    "чего чей чем через что чтоб чтобы чуть эти этого этой этом этот эту это я або але був була були було він "
    "вона вони від його їх коли мене мені ми немає під після та також те ти тобі це цей ця чи чому що щоб як "
    "який яка яке які є і з із й",
    "el": "και ο η το τα των τον την τους τις οι στο στη στην στον στα στις στους με για από σε του της τη ένα ένας "
    "μια μία να θα δεν μην είναι ήταν έχει έχω είχε που πως πώς πού πότε ποιος ποια ποιο τι γιατί όταν αν αλλά "
    "ή κι μου σου μας σας αυτός αυτή αυτό αυτά εγώ εσύ εμείς πολύ πιο ως όπως ότι μόνο ακόμα εδώ εκεί",
    "ar": "في من على إلى عن مع هذا هذه ذلك تلك هؤلاء التي الذي الذين ما ماذا متى أين كيف لماذا هل هو هي هم هن أنا نحن "
    "أنت أنتم كان كانت كانوا يكون تكون قد لقد لا لم لن ليس ليست إن أن إذا لو أو و ثم بل لكن حتى كل بعض غير بين "
    "بعد قبل عند منذ كما أي أيضا به بها له لها لهم فيه فيها عليه عليها إليه منه منها ب ل ك ف",
    "he": "של את על עם אל מן הוא היא הם הן אני אתה אנחנו זה זו זאת אלה כי אם או גם לא כן יש אין היה היתה הייתה היו מה "
    "מי מתי איפה למה איך כמה אבל רק כל לו לה להם לי לך שלי שלך שלו שלה אשר בין עד אז",
    "hi": "का की के को में से पर और है हैं था थी थे हो होता होती होते यह ये वह वे इस उस इन उन ने भी तो ही कि जो एक "
    "नहीं न या तक लिए साथ मैं मेरा मेरी मेरे हम तुम आप आपका आपकी क्या कब कहाँ कहां क्यों कैसे कौन कितना कितने "
    "कर करना किया गया गयी रहा रही रहे हूँ हूं जब तब अब बहुत कुछ अपना अपनी अपने",
}
"""For scripts of their own; Ukrainian words stand with the Russian ones."""
